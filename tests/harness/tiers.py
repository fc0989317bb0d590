"""The three tiers of the tests, and which tests one process of `-n 2` runs together.

unit      the default: needs no wheel, no environment, no network
build     takes a built wheel, an installed environment, another machine's compiler or an emulator, or compiles for minutes
release   what else there is: `-m ""` runs it, `-m release` alone
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

_FILE = "groups_file"


def assign(item: pytest.Item) -> None:
    """Gives a test its tier and its group, as it is collected."""
    dear = _dear(item)
    if not any(mark.name in ("build", "release") for mark in item.iter_markers()):
        item.add_marker("build" if dear else "unit")
    if not any(item.iter_markers("xdist_group")):
        item.add_marker(pytest.mark.xdist_group(dear or item.nodeid.partition("::")[0]))


def order(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the groups of the dear fixtures first, so that both processes end at much the same time; a process of xdist then tells
    the first one, which collects nothing itself, the group of each test.
    """
    items.sort(key=_rank)
    if file := getattr(config, "workerinput", {}).get(_FILE):
        groups = {item.nodeid: mark.args[0] for item in items if (mark := item.get_closest_marker("xdist_group"))}
        fresh = Path(f"{file}.{os.getpid()}")
        fresh.write_text(json.dumps(groups))
        fresh.replace(file)


def tell(node: Any, file: Path) -> None:
    """Tells a process of xdist where it has to tell the groups."""
    node.workerinput[_FILE] = str(file)


def scheduler(config: pytest.Config, log: Any, file: Path) -> Any:
    """Runs a group in one process, in the order of the tests. xdist's own `--dist loadgroup` finds no groups in pytest 9.2, since it
    writes them into names that pytest does not read any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        _groups: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self._groups is None:
                self._groups = json.loads(file.read_text())
            return self._groups[nodeid]

    config.option.loadscopereorder = False
    return Groups(config, log)


def _dear(item: pytest.Item) -> str:
    """The dearest fixture that a test requests, itself or by way of others; empty: none."""
    requested: Sequence[str] = getattr(item, "fixturenames", ())
    return next((name for name in DEAR if name in requested), "")


def _rank(item: pytest.Item) -> tuple[int, bool]:
    dear = _dear(item)
    return DEAR.index(dear) if dear else len(DEAR), not any(item.iter_markers("build"))
