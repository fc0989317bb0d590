"""An extension's kernel that is bound without an operator: it is given addresses, and a stream."""

from __future__ import annotations

import ctypes
import os

import torch
from torch import Tensor


def launch_scale(target: Tensor, source: Tensor, factor: float, stream: torch.cuda.Stream) -> None:
    """target = factor * source, for contiguous floats, by a kernel of the stream's device."""
    kernel = ctypes.CDLL(os.environ["LMS_TEST_OPERATORS"]).operators_scale
    addresses, numbers = [ctypes.c_void_p] * 2, [ctypes.c_int64, ctypes.c_float, ctypes.c_int]
    kernel.argtypes = [*addresses, *numbers, ctypes.c_void_p, ctypes.c_int]
    captured = torch.cuda.is_current_stream_capturing()
    words = (source.numel(), factor, stream.device.index, stream.cuda_stream, captured)
    with torch.cuda.device(stream.device):
        assert kernel(target.data_ptr(), source.data_ptr(), *words) == 0
