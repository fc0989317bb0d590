"""The framework's own build of a patched tree."""
