"""The names of Large Model Support for programs that were written for TFLMS, versions 1 and 2.

``from tensorflow_large_model_support import LMS`` finds a class that takes the arguments of both. The tensors of the
program are paged by ``tf.lms``, under a limit; graphs stay as they are. docs/tensorflow.md says what each parameter does.

The import enables LMS for every GPU, and for the CPU if it has a limit. On a GPU that has to be before TensorFlow makes
its devices, so before the first operation or session; later a line in the log says what to do. Nothing imports Keras
before one of the classes is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import devices

__all__ = ["LMS", "LMSKerasCallback", "LMSSessionRunHook"]

devices.enable()


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.lms"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
