"""Warnings of the log that are given once in a process: what a program asks for in every step would fill it."""

from __future__ import annotations

from tensorflow.python.platform import tf_logging

_given: set[str] = set()


def warn(sentence: str) -> None:
    if sentence not in _given:
        _given.add(sentence)
        tf_logging.warning("%s", sentence)
