"""Which tags can be had on which platform, for which interpreters, as a table for readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from lmsbuild.catalogue import catalogue, debian_builds
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.catalogue.debian_builds import DebianBuild
from lmsbuild.wheel.target import minor_of, python_of

_HEAD = """
## By platform

The interpreters that each tag has an official wheel for, by kind of machine, as `patches/catalogue` lists the registry's files. "Debian"
stands for a build of Debian's where there is no official wheel: `lmsbuild conda` takes that by itself
([docs/conda.md](conda.md#power-and-other-machines)).
"""


def text(patches: Path) -> str:
    """A table for each framework; consecutive tags of which the same is true share a line."""
    found = _HEAD
    known = catalogue.tags(patches)
    for framework in catalogue.frameworks(patches):
        tags = sorted((tag for tag in known if tag.framework == framework), key=lambda tag: tag.number)
        builds = debian_builds.by_tag(patches, framework)
        cells = {tag.name: _cells(tag, builds.get(tag.name, ())) for tag in tags}
        count = Counter(machine for row in cells.values() for machine in row)
        machines = [machine for machine, _ in count.most_common()]
        found += f"\n| tags of {framework} | {' | '.join(machines)} |\n|{' --- |' * (len(machines) + 1)}\n"
        for row, group in groupby(tags, key=lambda tag: cells[tag.name]):
            names = [tag.name for tag in group]
            what = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            found += f"| {what} | {' | '.join(row.get(machine, '') for machine in machines)} |\n"
    return found


def _cells(tag: Tag, builds: Iterable[DebianBuild]) -> dict[str, str]:
    """What there is of a tag, by kind of machine; `builds` are Debian's of it."""
    cells = {machine: ", ".join(_pythons(abis)) for machine, abis in tag.machines.items()}
    for build in builds:
        cells.setdefault(build.machine, f"{build.python}, Debian")
    return cells


def _pythons(abis: Iterable[str]) -> list[str]:
    return sorted(filter(None, map(python_of, abis)), key=lambda python: (minor_of(python), python))
