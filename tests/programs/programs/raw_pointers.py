"""An extension that is bound without an operator and works on raw pointers, in loops and in system calls."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import torch

SOURCE = r"""
#include <cstdio>
#include <cstdint>

extern "C" {
void scaled_sum(const float* a, const float* b, float* out, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + scale * b[i];
}
int64_t store(const char* path, const void* data, int64_t bytes) {
  FILE* file = fopen(path, "wb");
  if (!file) return -1;
  int64_t written = fwrite(data, 1, bytes, file);
  return fclose(file) ? -1 : written;
}
int64_t load(const char* path, void* data, int64_t bytes) {
  FILE* file = fopen(path, "rb");
  if (!file) return -1;
  int64_t read = fread(data, 1, bytes, file);
  return fclose(file) ? -1 : read;
}
}
"""
COUNT = 1 << 18


def prepare() -> None:
    Path("extension.cc").write_text(SOURCE)
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", "extension.cc", "-o", "extension.so"], check=True)


def run(rank: int) -> Any:
    extension = ctypes.CDLL("../../extension.so")
    extension.store.restype = extension.load.restype = ctypes.c_int64
    torch.manual_seed(0)
    tensors = [torch.randn(COUNT) for _ in range(12)]

    def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
        return ctypes.c_void_p(tensor.data_ptr())

    for turn in range(2):
        for index, out in enumerate(tensors):
            a, b = tensors[index - 1], tensors[index - 5]
            scale = ctypes.c_float(0.5 + turn)
            extension.scaled_sum(pointer(a), pointer(b), pointer(out), ctypes.c_int64(COUNT), scale)
    written = [
        extension.store(f"{index}.bin".encode(), pointer(one), ctypes.c_int64(4 * COUNT))
        for index, one in enumerate(tensors)
    ]
    back = [torch.zeros(COUNT) for _ in tensors]
    read = [
        extension.load(f"{index}.bin".encode(), pointer(one), ctypes.c_int64(4 * COUNT))
        for index, one in enumerate(back)
    ]
    return [tensors, written, back, read]
