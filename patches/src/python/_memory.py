"""How much of this machine's memory the process may use, in bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMITS = {"memory": "memory.limit_in_bytes", "": "memory.max"}  # by controller: control groups v1, and v2


def usable(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> int:
    """The machine's memory, or the least limit of the control groups that the process is in where that is less."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([installed, *_group_limits(proc, root)])


def _group_limits(proc: str, root: str) -> Iterator[int]:
    for group in _lines(os.path.join(proc, "self/cgroup")):  # "0::/user.slice", "9:memory:/docker/4f0"
        _, controllers, path = group.split(":", 2)
        for controller in controllers.split(","):
            if controller in _LIMITS:
                yield from _limits_above(os.path.join(root, controller), path, _LIMITS[controller])


def _limits_above(root: str, path: str, name: str) -> Iterator[int]:
    """The limits of a group and of all that it is in; a container sees its own group, by whatever name, as the root."""
    while True:
        for line in _lines(os.path.join(root, path.lstrip("/"), name)):
            if line.isdigit():  # not "max"
                yield int(line)
        if path in ("", "/"):
            return
        path = os.path.dirname(path)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except (OSError, ValueError):
        return []
