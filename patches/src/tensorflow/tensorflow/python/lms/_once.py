"""Lines of the log that are given once in a process: what a program asks for in every step would fill it."""

from __future__ import annotations

from tensorflow.python.platform import tf_logging

_given: set[str] = set()


def warn(sentence: str) -> None:
    if first(sentence):
        tf_logging.warning("%s", sentence)


def first(sentence: str) -> bool:
    """Whether it is asked for the first time."""
    if sentence in _given:
        return False
    _given.add(sentence)
    return True
