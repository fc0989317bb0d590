"""Wheel files: names, members, the interpreter they are for."""
