"""Releases that Debian builds itself, for machines without official wheels: patches/catalogue/FRAMEWORK/debian.toml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.catalogue.catalogue import Tag, read_toml


@dataclass(frozen=True)
class DebianBuild:
    """A release as one version of Debian has it, for one kind of machine."""

    tag: str
    machine: str  # as wheels call it, such as "ppc64le"
    python: str  # such as "3.11"
    suite: str  # of Debian, such as "bookworm"
    architecture: str  # as Debian calls the machine, such as "ppc64el"
    license: str  # an SPDX expression
    needs: tuple[str, ...]  # Python packages, as pip calls them
    requires: tuple[str, ...]  # the system's libraries, as conda calls their packages
    framework: tuple[str, ...]  # the packages with its files
    headers: tuple[str, ...]  # folders of headers that it has elsewhere
    without: tuple[str, ...]  # patterns of its files that official wheels do not have
    beside: tuple[str, ...]  # the packages with the libraries that it needs
    unused: tuple[str, ...]  # libraries that it names, but uses nothing of
    texts: tuple[str, ...]  # the packages with texts of licences

    @property
    def interpreter(self) -> str:
        """The tag of the ABI, as a wheel's name has it."""
        return "cp" + self.python.replace(".", "")

    @property
    def packages(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.framework, *self.beside, *self.texts)


def read(patches: Path, framework: str) -> list[DebianBuild]:
    """The rows of a framework; it need not have any."""
    path = patches / "catalogue" / framework / "debian.toml"
    rows = read_toml(path)["build"] if path.exists() else []
    found = []
    for row in rows:
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        found.append(DebianBuild(**values))
    return found


def by_tag(patches: Path, framework: str) -> dict[str, list[DebianBuild]]:
    """The rows of a framework by their tags, for who looks at many."""
    found: dict[str, list[DebianBuild]] = {}
    for build in read(patches, framework):
        found.setdefault(build.tag, []).append(build)
    return found


def find(patches: Path, tag: Tag, machine: str) -> DebianBuild | None:
    """What Debian has of a tag for a kind of machine."""
    known = (build for build in read(patches, tag.framework) if (build.tag, build.machine) == (tag.name, machine))
    return next(known, None)
