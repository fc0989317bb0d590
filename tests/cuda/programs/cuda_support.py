"""What the checks on the simulated CUDA share. Contents are compared on the CPU: no kernel runs there but those that
kernels.cc stands in for. The simulation reads its options when CUDA is first used, so simulate() comes first.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch
from common import MIB
from support import data, same

__all__ = [
    "MIB",
    "away",
    "data",
    "enable",
    "lost",
    "page_out",
    "simulate",
    "simulator",
    "stand_in",
    "stand_in_for_fill",
    "stat",
    "to_cuda",
]


def simulate(**options: object) -> None:
    """Sets options of the simulation (sim.h); ``fail``, ``devices`` and so on."""
    assert not torch.cuda.is_initialized()
    for name, value in options.items():
        os.environ[f"SIM_CUDA_{name.upper()}"] = str(value)


def simulator() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.sim_calls.restype = ctypes.c_uint64
    return library


def stand_in(kind: str, *names: str) -> None:
    """Lets a function of kernels.cc stand in for kernels of these names."""
    library = ctypes.CDLL(os.environ["LMS_TEST_KERNELS"], ctypes.RTLD_GLOBAL)
    for name in names:
        getattr(library, f"register_{kind}")(name.encode())


def stand_in_for_fill() -> None:
    """The same for the fill of integers that comes before a graph is captured, whatever its name in this release."""
    number = torch.empty(1, dtype=torch.int64, device="cuda")
    try:
        number.fill_(3)
    except RuntimeError:
        library = simulator()
        library.sim_refused_kernels.restype = ctypes.c_char_p
        stand_in("fill", library.sim_refused_kernels().decode().split()[-1])
        number.fill_(3)
    assert number.item() == 3


def enable(limit: int | None = 64 * MIB, device: str = "cuda", **options: Any) -> None:
    torch.lms.enable(device, limit=limit, **options)


def stat(name: str, device: str = "cuda") -> int:
    return torch.lms.stats(device)[name]


def to_cuda(values: list[torch.Tensor], device: str = "cuda") -> list[torch.Tensor]:
    return [value.to(device) for value in values]


def page_out(device: str = "cuda") -> None:
    """Pages out everything that may leave, and makes sure that something did."""
    torch.lms.reclaim(device)
    assert stat("away_bytes.current", device) > 0, torch.lms.stats(device)


def away(expected: torch.Tensor, device: str = "cuda") -> torch.Tensor:
    """A managed copy of ``expected`` whose block is away."""
    before = stat("away_bytes.current", device)
    tensor = expected.to(device)
    torch.lms.reclaim(device)
    assert stat("away_bytes.current", device) >= before + expected.untyped_storage().nbytes(), torch.lms.stats(device)
    return tensor


def equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    same(actual.cpu(), expected)


def lost() -> bool:
    """Whether the device reports an error from now on, as it does after an illegal access."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "CUDA" in str(error), error
        return True
    return False
