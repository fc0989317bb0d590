"""Functions whose work grows with the square of the number of entries, each in another way; and one that does not."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path


def linear(names: list[str], file: Path) -> None:
    """Everything here costs the same for each entry."""
    known = set(names)
    table = {name: place for place, name in enumerate(names)}
    assert all(name in known and table[name] >= 0 and known for name in names)
    file.read_bytes()
    subprocess.run(["true"], check=True)


def loops(names: list[str], file: Path) -> None:
    sum(first == second for first in names for second in names)


def membership(names: list[str], file: Path) -> None:
    for name in names:
        assert name in names


def removal(names: list[str], file: Path) -> None:
    left = [*names]
    for name in reversed(names):
        left.remove(name)


def slices(names: list[str], file: Path) -> None:
    while names:
        names = names[1:]


def copies(names: list[str], file: Path) -> None:
    for name in names:
        assert name in set(names)


def unions(names: list[str], file: Path) -> None:
    met: frozenset[str] = frozenset()
    for name in names:
        met = met | {name}


def unpacking(names: list[str], file: Path) -> None:
    table: dict[str, int] = {}
    for name in names:
        table = {**table, name: 1}


def sorting(names: list[str], file: Path) -> None:
    for _ in names:
        sorted(names)


def texts(names: list[str], file: Path) -> None:
    text = "\n".join(names)
    for name in names:
        text = re.sub(re.escape(name), "", text)


def waiting(names: list[str], file: Path) -> None:
    """As the tool once waited for the members of a wheel."""
    futures = [Future[None]() for _ in names]
    left = set(futures)
    while left:
        next(iter(left)).set_result(None)
        _, left = wait(left, return_when=FIRST_COMPLETED)


def reading(names: list[str], file: Path) -> None:
    for _ in names:
        file.read_bytes()


def starting(names: list[str], file: Path) -> None:
    for _ in range(len(names) ** 2 // 64):
        subprocess.run(["true"], check=True)
