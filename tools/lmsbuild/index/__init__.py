"""Indices of wheels, for pip."""
