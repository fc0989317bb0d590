"""What of training.py is TensorFlow's own."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: it logs about the processor's instructions

import tensorflow as tf

HASHED = "weights and the optimizer's variables"  # what `digest` is of


def load() -> None:
    """All that is imported is imported already."""


def prepare() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if hasattr(tf.config.experimental, "enable_op_determinism"):  # from 2.8 on
        tf.config.experimental.enable_op_determinism()


def enable(limit: int, min_size: int) -> None:
    tf.lms.enable("cpu", limit=limit, min_size=min_size)


def disable() -> None:
    tf.lms.disable("cpu")


def statistics() -> dict[str, int]:
    return dict(tf.lms.stats("cpu"))


def digest(trainer: Any) -> str:
    """A hash of all weights and of the optimizer's variables."""
    return str(trainer.digest())
