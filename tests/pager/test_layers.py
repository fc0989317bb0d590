"""No include of the pager runs upward, nor in a circle."""

from __future__ import annotations

import graphlib
import re
from fnmatch import fnmatchcase
from pathlib import Path

PAGER = Path(__file__).parents[2] / "patches" / "src" / "pager"

#: From the bottom to the top, the nouns of each layer. A noun is a header together with its source, wherever in the
#: folder they lie. docs/internals.md says what the layers are.
LAYERS = {
    "base": (
        "api",
        "background",
        "condition",
        "descriptor",
        "imports",
        "override",
        "ram",
        "ranges",
        "statistics",
        "statistics_page",
        "status",
        "status_code",
        "limit_kind",
        "thread_text",
    ),
    "sharing": ("bell", "fair_shares", "ledger", "meeting_point", "monotonic", "share_terms", "sharer"),
    "uses": ("event", "event_log", "trace"),
    "policies": ("policy", "*_policy", "eviction_plan", "policies"),
    "memory": ("backend", "store"),
    "disk": ("checksum", "disk_queue", "disk_queues", "file_segment", "file_store", "thread_queue", "uring_queue"),
    "blocks": (
        "arena",
        "batch",
        "block",
        "block_table",
        "cache",
        "faulted_pins",
        "host_copies",
        "pin",
        "report",
        "thread",
    ),
    "backends": ("cuda_*", "host_backend", "host_pages", "pinned_store"),
    "process": ("fault", "fork", "registry", "system_calls"),
    "pager": ("pager", "pager_ram", "pager_share"),
    "interface": ("kept_options", "lms"),
}
UNITY = "all"  # includes every source
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


def _includes() -> dict[str, set[str]]:
    """By noun, the nouns that its files include."""
    found: dict[str, set[str]] = {}
    for path in PAGER.rglob("*"):
        if path.suffix in (".h", ".cc") and path.stem != UNITY:
            names = {Path(name).stem for name in INCLUDE.findall(path.read_text())}
            found.setdefault(path.stem, set()).update(names - {path.stem})
    return found


def _layers_of(noun: str) -> list[int]:
    return [
        number
        for number, patterns in enumerate(LAYERS.values())
        if any(fnmatchcase(noun, pattern) for pattern in patterns)
    ]


def test_every_noun_has_one_layer() -> None:
    nouns = _includes()
    assert {noun: len(_layers_of(noun)) for noun in nouns} == dict.fromkeys(nouns, 1)
    patterns = [pattern for layer in LAYERS.values() for pattern in layer]
    assert [pattern for pattern in patterns if not any(fnmatchcase(noun, pattern) for noun in nouns)] == []


def test_no_include_leaves_the_pager() -> None:
    nouns = _includes()
    assert set().union(*nouns.values()) <= set(nouns)


def test_no_include_runs_upward() -> None:
    nouns = _includes()
    layer = {noun: min(_layers_of(noun)) for noun in nouns}
    assert {(noun, name) for noun in nouns for name in nouns[noun] if layer[name] > layer[noun]} == set()


def test_no_include_runs_in_a_circle() -> None:
    graphlib.TopologicalSorter(_includes()).prepare()  # raises CycleError
