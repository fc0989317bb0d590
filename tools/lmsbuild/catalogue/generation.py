"""Generations: releases with the same set of interfaces, each called by the first release that has it.

What follows from one (which of the added files are for it, what a library is linked with) is data in series.toml, and so is
how a wheel's generation is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmsbuild.errors import BadSources


@dataclass(frozen=True)
class Generation:
    """One generation."""

    name: str
    has: Mapping[str, str]  # files of its wheels, and a text in each; empty: any
    link: Mapping[str, Sequence[str]]  # what it has instead of a library, by the library's name
    rename: Mapping[str, str]  # folders that have another name in its wheels
    define: tuple[str, ...]  # macros that its headers need, as -D takes them
    standard: str  # the C++ standard that its headers need; empty: each wheel states it
    headers_of: str  # a tag whose wheels have the headers that its own lack; empty: they lack none
    headers: Mapping[str, str]  # git's hash of each of those, by its path in a wheel

    def member(self, path: str) -> str:
        """What `path`, as series.toml has it, is called in wheels of this generation."""
        for folder, name in self.rename.items():
            if path.startswith(folder):
                return name + path.removeprefix(folder)
        return path


@dataclass(frozen=True)
class Only:
    """An added file that is not for every generation."""

    path: str
    generations: tuple[str, ...]


def read(table: Mapping[str, Any]) -> list[Generation]:
    """The generations in series.toml, in the order in which a wheel is compared with them."""
    return [
        Generation(
            name=row["name"],
            has=row["has"],
            link=row.get("link", {}),
            rename=row.get("rename", {}),
            define=tuple(row.get("define", ())),
            standard=row.get("standard", ""),
            headers_of=row.get("headers_of", ""),
            headers=row.get("headers", {}),
        )
        for row in table["generation"]
    ]


def read_only(table: Mapping[str, Any]) -> list[Only]:
    """The files in series.toml that are not for every generation. Raises BadSources when one names no generation."""
    known = {generation.name for generation in read(table)}
    found = [Only(row["path"], tuple(row["generations"])) for row in table.get("only", ())]
    for entry in found:
        if unknown := set(entry.generations) - known:
            raise BadSources(
                f"series.toml has {entry.path} for the generation {min(unknown)!r}, which it does not list"
            )
    return found


def find(generations: Sequence[Generation], name: str) -> Generation:
    """The generation of this name. Raises BadSources."""
    for generation in generations:
        if generation.name == name:
            return generation
    raise BadSources(f"tags.toml has the generation {name!r}, which series.toml does not list")


def detect(generations: Sequence[Generation], read_text: Callable[[str], str | None]) -> Generation | None:
    """The first generation that has everything it should; `read_text` gives a file of the wheel, or None."""
    for generation in generations:
        texts = {path: read_text(path) for path in generation.has}
        if all(text is not None and generation.has[path] in text for path, text in texts.items()):
            return generation
    return None
