"""Lines of TensorFlow's log, each with the prefix that programs and guides look for: "[LMS][level] "."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.lms import _once


def info(sentence: str, level: int = 0) -> None:
    tf.compat.v1.logging.info("%s", f"[LMS][{level}] {sentence}")


def info_once(sentence: str) -> None:
    if _once.first(sentence):
        info(sentence)


def warn(sentence: str) -> None:
    """A warning, which is given once in a process."""
    _once.warn(f"[LMS][0] {sentence}")
