"""Folders that are published."""
