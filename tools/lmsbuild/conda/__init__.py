"""Conda packages of patched wheels."""
