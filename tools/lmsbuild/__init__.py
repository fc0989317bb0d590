"""Builds framework wheels that carry Large Model Support."""
