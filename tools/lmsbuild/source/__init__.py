"""Upstream's source trees."""
