"""What a wheel says of itself: where it says it, and how, is data in series.toml."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmsbuild.catalogue.generation import Generation

if TYPE_CHECKING:  # ci/gpu reads patches without the packages that reading wheels takes
    from lmsbuild.wheel.wheel import WheelFile


@dataclass(frozen=True)
class Statement:
    """A fact that wheels state: what the first group of `pattern` matches in one of `files`."""

    files: tuple[str, ...]  # in the wheel; "*" stands for any folders
    pattern: re.Pattern[bytes]

    def __str__(self) -> str:
        return " or ".join(self.files)

    def members(self, wheel: WheelFile) -> list[str]:
        """Those of the files that the wheel has."""
        return [name for file in self.files for name in fnmatch.filter(wheel.members, file)]

    def read(self, wheel: WheelFile) -> list[str]:
        """What the first of the files that states it states, in its order; empty: none does."""
        for name in self.members(wheel):
            if found := self.pattern.findall(wheel.read(name)):
                return [text.decode() for text in found]
        return []


@dataclass(frozen=True)
class Statements:
    """The facts that the catalogue takes from wheels."""

    commit: Statement
    cuda: Statement
    standard: Statement | None  # None: the generation says it


def read(table: Mapping[str, Any], own: Generation) -> Statements:
    """The table [wheel] of series.toml, for one generation."""

    def statement(row: Mapping[str, Any]) -> Statement:
        return Statement(tuple(own.member(file) for file in row["files"]), re.compile(row["pattern"].encode()))

    rows = table["wheel"]
    return Statements(
        commit=statement(rows["commit"]),
        cuda=statement(rows["cuda"]),
        standard=statement(rows["standard"]) if "standard" in rows else None,
    )
