"""The three tiers of the tests, and which tests one process of `-n 2` runs together.

unit      the default: needs no wheel, no environment, no network
build     takes a built wheel, an installed environment, another machine's compiler or an emulator, or compiles for minutes
release   what else there is: `-m ""` runs it, `-m release` alone
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

# Fixtures that make what build tests need, from the dearest down. Tests of one run in one process, which makes it once; a test
# that requests several belongs to the first.
DEAR = (
    "cuda_wheel",
    "tensorflow_wheel",
    "tensorflow_gpu_wheel",
    "allocator",
    "other_channel",
    "libraries_python",
    "torchvision",
    "built_wheel",
    "wheel_builder",
    "debian_tree",
    "programs_for",
)


def assign(items: list[pytest.Item]) -> None:
    """Gives each test its tier and its group, and puts the groups of the dear fixtures first, so that both processes end at much
    the same time.
    """
    for item in items:
        dear = _dear(item)
        if not any(mark.name in ("build", "release") for mark in item.iter_markers()):
            item.add_marker("build" if dear else "unit")
        if not any(item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.xdist_group(dear or item.nodeid.partition("::")[0]))
    items.sort(key=_rank)


def _dear(item: pytest.Item) -> str:
    """The dearest fixture that a test requests, itself or by way of others; empty: none."""
    requested: Sequence[str] = getattr(item, "fixturenames", ())
    return next((name for name in DEAR if name in requested), "")


def _rank(item: pytest.Item) -> tuple[int, bool]:
    dear = _dear(item)
    return DEAR.index(dear) if dear else len(DEAR), not any(item.iter_markers("build"))
