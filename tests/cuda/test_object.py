"""Runs every case of object_units.cc on libc10_cuda.so of releases whose allocator is a single object and free functions,
as before 2.0, and the simulated CUDA. The library is the official wheel's, or built from upstream's source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import c10_cuda
import cases

HERE = Path(__file__).parent
CASES = cases.names(HERE / "object_units.cc")
BUILT = "v1.13.1"  # whose libc10_cuda.so has CUDA's runtime inside
SINCE = {
    "memory_fraction_bounds_the_limit": "v1.10.2",
    "captured_blocks_stay": "v1.10.2",
}  # the release has no such thing
TAGS = ("v1.4.0", "v1.10.2", BUILT)
DEVICES = {"SIM_CUDA_DEVICES": "2", "SIM_CUDA_MEMORY": str(128 << 20)}


def parameters() -> list[tuple[str, str]]:
    """(tag, case)"""
    return [(tag, case) for tag in TAGS for case in CASES if TAGS.index(SINCE.get(case, tag)) <= TAGS.index(tag)]


@pytest.mark.parametrize(("tag", "case"), parameters())
def test_case(
    tag: str, case: str, on_allocator: Callable[..., Path], shared_library: Callable[..., Path], tmp_path: Path
) -> None:
    library = shared_library("late_library.cc", tag)  # which a case loads
    cases.run([on_allocator("object_units.cc", tag), case], tmp_path, {**DEVICES, "LMS_TEST_LIBRARY": str(library)})


def test_what_is_built_is_like_the_official_library(allocator: Callable[[str], Any]) -> None:
    base = allocator(BUILT)
    official = base.wheel / "torch/lib/libc10_cuda.so"
    assert base.c10_cuda != official
    assert c10_cuda.runtime_of(official) is None
    exported = c10_cuda.exported(official)
    assert c10_cuda.GET in exported
    assert c10_cuda.exported(base.c10_cuda) == exported
    sizes = c10_cuda.allocator_sizes(official)
    assert sizes[c10_cuda.OBJECT] == 8  # a virtual table's address, and no data
    assert sizes.keys() == {c10_cuda.OBJECT, *c10_cuda.CLASS}
    assert c10_cuda.allocator_sizes(base.c10_cuda) == sizes
