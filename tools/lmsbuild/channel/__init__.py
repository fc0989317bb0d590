"""Channels of conda packages."""
