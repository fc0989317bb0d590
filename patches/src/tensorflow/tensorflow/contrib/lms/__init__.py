"""The names that programs for version 1 import from here; they are those of ``tensorflow_large_model_support``."""

from __future__ import annotations

from typing import Any

import tensorflow_large_model_support as _support

_NAMES = {"LMS": "LMS", "LMSHook": "LMSSessionRunHook", "LMSKerasCallback": "LMSKerasCallback"}
__all__ = ["LMS", "LMSHook", "LMSKerasCallback"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(_support, _NAMES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
