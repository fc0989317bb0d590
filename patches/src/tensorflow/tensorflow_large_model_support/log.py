"""Lines of TensorFlow's log, each with the prefix that programs and guides look for: "[LMS][level] "."""

from __future__ import annotations

import tensorflow as tf

_given: set[str] = set()


def info(sentence: str, level: int = 0) -> None:
    tf.compat.v1.logging.info("%s", f"[LMS][{level}] {sentence}")


def warn(sentence: str) -> None:
    """A warning, which is given once in a process."""
    if _first(sentence):
        tf.compat.v1.logging.warning("%s", f"[LMS][0] {sentence}")


def info_once(sentence: str) -> None:
    if _first(sentence):
        info(sentence)


def _first(sentence: str) -> bool:
    if sentence in _given:
        return False
    _given.add(sentence)
    return True
