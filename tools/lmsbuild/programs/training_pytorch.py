"""What of training.py is PyTorch's own."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

HASHED = "parameters and gradients"  # what `digest` is of


def load() -> None:
    """Imports what torch imports when the first optimizer is made, from 2.0 on."""
    with suppress(ImportError):
        importlib.import_module("torch._dynamo")


def prepare() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if hasattr(torch, "use_deterministic_algorithms"):  # from 1.8 on; what is trained is deterministic anyway
        torch.use_deterministic_algorithms(True)


def enable(limit: int, min_size: int) -> None:
    for library in sorted(Path(torch.__file__).parent.glob("lib/libtorch_lms*.so")):
        ctypes.CDLL(str(library))  # also the one for CUDA, so that a symbol which it misses is found here
    torch.lms.enable("cpu", limit=limit, min_size=min_size)


def disable() -> None:
    torch.lms.disable("cpu")


def statistics() -> dict[str, int]:
    return dict(torch.lms.stats("cpu"))


def digest(trainer: Any) -> str:
    """A hash of every parameter and gradient."""
    result = hashlib.sha256()
    for tensor in trainer.tensors():
        whole = tensor.detach().contiguous()
        result.update(ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()))
    return result.hexdigest()
