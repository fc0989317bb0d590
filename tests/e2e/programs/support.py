"""What the checks share. A check is a function ``check_*`` without arguments that raises when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from common import MIB, load
from skip import Skip

torch.set_num_threads(1)


def models() -> ModuleType:
    return load("models")


def needs_distributed() -> None:
    """Raises Skip where the build lacks torch.distributed."""
    if not torch.distributed.is_available():
        raise Skip("needs a build with torch.distributed")


def enable(limit: int = 64 * MIB, **options: Any) -> None:
    torch.lms.enable("cpu", limit=limit, **options)


def stat(name: str) -> int:
    return torch.lms.stats("cpu")[name]


def data(mib: float = 1, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random contents that depend on the arguments alone."""
    generator = torch.Generator().manual_seed(seed)
    count = int(mib * MIB) // 4
    values = torch.randint(-(2**20), 2**20, (count,), generator=generator, dtype=torch.int32)
    return values if dtype == torch.int32 else (values / 1024).to(dtype)


def page_out() -> None:
    """Pages out everything that may leave, and makes sure that something did."""
    torch.lms.reclaim("cpu")
    assert stat("away_bytes.current") > 0, torch.lms.stats("cpu")


def away(expected: torch.Tensor) -> torch.Tensor:
    """A managed copy of ``expected`` whose block is away."""
    before = stat("away_bytes.current")
    tensor = expected.clone()
    tensor.view(-1)  # before 1.9 a block is known as a tensor's when an operation uses it
    torch.lms.reclaim("cpu")
    assert stat("away_bytes.current") >= before + tensor.numel() * tensor.element_size(), torch.lms.stats("cpu")
    return tensor


def pressure() -> None:
    """Runs operations that need the whole limit, so that whatever may leave does."""
    limit = torch.lms.limit("cpu")
    parts = [torch.full((limit // 16,), float(i)) for i in range(8)]
    assert all(float(part[0]) == i for i, part in enumerate(parts))


@contextmanager
def no_faults() -> Iterator[None]:
    """What runs inside must be foreseen by LMS: nothing is left to the fault handler."""
    before = stat("faults")
    yield
    assert stat("faults") == before, f"{stat('faults') - before} faults"


def same(actual: Any, expected: Any) -> None:
    """Equality to the bit of tensors in any nesting."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor) and actual.layout == expected.layout and actual.dtype == expected.dtype
        nested = getattr(expected, "is_nested", False)
        if expected.layout == torch.strided and not nested:
            assert actual.shape == expected.shape and torch.equal(actual, expected)
        elif nested:
            same(list(actual.unbind()), list(expected.unbind()))
        elif expected.layout == torch.sparse_coo:
            actual, expected = actual.coalesce(), expected.coalesce()
            same([actual.indices(), actual.values()], [expected.indices(), expected.values()])
        else:
            by_row = expected.layout in (torch.sparse_csr, torch.sparse_bsr)
            names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
            for name in (*names, "values"):
                same(getattr(actual, name)(), getattr(expected, name)())
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):  # noqa: B905  what releases with Python 3.7 run, too
            same(a, e)
    else:
        assert actual == expected, (actual, expected)


def same_as_stock(make: Callable[[], Any], use: Callable[[Any], Any], faults: bool = False) -> None:
    """``use(make())`` with the stock allocator, then under LMS with every input away: the same bits, and no fault."""
    expected_inputs = make()
    expected = use(expected_inputs)
    enable()
    inputs = make()
    page_out()
    before = stat("faults")
    actual = use(inputs)
    assert faults or stat("faults") == before, f"{stat('faults') - before} faults"
    page_out()
    same(actual, expected)
    same(inputs, expected_inputs)  # in-place operators


def python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program text in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
