"""Conda packages of patched wheels."""

LEVEL = 12  # of compression; docs/performance.md has what others take
LARGEST_NUMBER = 99_999  # of a build
