"""The models that the tool trains, from the checkout and without installing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

TOOL = Path(__file__).resolve().parents[2] / "tools" / "lmsbuild" / "programs"
KERAS = ("convnet", "transformer", "lstm", "unet3d")  # those of keras_models, without importing TensorFlow


def load(name: str) -> Any:
    """tools/lmsbuild/programs/<name>.py: `models`, or `keras_models`."""
    spec = importlib.util.spec_from_file_location(name, TOOL / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
