"""Lets torchvision be imported where its library does not load.

The registry's wheel is built for CUDA, whose libraries are not here. Its Python needs no more than the names of two operators.
"""

from __future__ import annotations

import sys

import torch

try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
