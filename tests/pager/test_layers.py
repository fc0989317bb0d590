"""No include of the pager runs upward."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGER = Path(__file__).parents[2] / "patches" / "src" / "pager"

#: From the bottom to the top, also within a layer: a file includes only what stands before it. A noun is its header
#: together with its source, wherever in the folder they lie. docs/internals.md says what the layers are.
LAYERS = {
    "base": ["api", "status_code", "status", "condition", "thread_text", "ranges", "statistics", "override"],
    "uses": ["event", "event_log", "trace"],
    "policies": ["policy", "eviction_plan", "lru_policy", "iteration_policy", "policies"],
    "memory": ["store", "backend"],
    "blocks": ["block", "pin", "thread", "arena", "cache", "block_table", "faulted_pins", "host_copies", "report"],
    "backends": [
        "host_backend",
        "cuda_driver",
        "cuda_device",
        "cuda_streams",
        "cuda_chunks",
        "pinned_store",
        "cuda_away",
        "cuda_backend",
        "cuda_ipc",
    ],
    "process": ["registry", "fault", "fork"],
    "pager": ["pager"],
    "interface": ["lms"],
}
ORDER = [noun for layer in LAYERS.values() for noun in layer]
UNITY = "all"  # includes every source
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


def _files() -> list[Path]:
    return sorted(path for path in PAGER.rglob("*") if path.suffix in (".h", ".cc") and path.stem != UNITY)


def test_every_file_has_a_layer() -> None:
    assert {path.stem for path in _files()} == set(ORDER)
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("path", _files(), ids=lambda path: path.name)
def test_no_include_runs_upward(path: Path) -> None:
    below = ORDER[: ORDER.index(path.stem)]
    included = {Path(name).stem for name in INCLUDE.findall(path.read_text())}
    assert included - {path.stem} <= set(below)
