"""Patches: made from their sources, read, applied."""
