"""What can be built: a row for each official wheel that the catalogue knows, and one for the package that is made of it.

What Debian builds for a machine without official wheels has only the second, as `lmsbuild conda` alone takes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any

from lmsbuild.catalogue import catalogue, debian_builds
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.conda.platforms import find_platform, read_platforms
from lmsbuild.errors import NothingToBuild
from lmsbuild.matrix.row import KINDS, Row
from lmsbuild.wheel.target import machine_of, minor_of, python_of

MOST_JOBS = 256  # that GitHub makes of one matrix
_SHARD = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Filters:
    """Which rows are asked for: of each field one of these values, or any where there are none."""

    frameworks: Sequence[str] = ()
    tags: Sequence[str] = ()
    packages: Sequence[str] = ()
    pythons: Sequence[str] = ()
    platforms: Sequence[str] = ()
    kinds: Sequence[str] = ()
    names: Sequence[str] = ()
    shard: str = ""  # such as 2/4: of what is left, the second of four parts


def base_of(patches: Path, tag: Tag, row: Row, machine: str) -> dict[str, Any]:
    """What a row, which is of `tag`, is made of: the official wheels, or what Debian has."""
    if official := wheels_for(tag, row.package, row.python, machine):
        return official
    build = debian_builds.find(patches, tag, machine)
    # As JSON has it, so that it equals what is read back.
    stated = asdict(build).items() if build else ()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in stated}


def wheels_for(tag: Tag, package: str, python: str, machine: str) -> dict[str, str]:
    """The sha256 of the official wheels, by file name, that pip chooses from for this interpreter and machine."""
    own = catalogue.of_package(tag, package).wheels
    return {name: own[name] for name in sorted(own) if (python, machine) in _places(name)}


def select(patches: Path, recipes: Path, filters: Filters) -> list[Row]:
    """The rows that pass all filters. Raises NothingToBuild when there is none, and what a wrong name raises."""
    wanted = _checked(patches, recipes, filters)
    everything = list(_rows(patches, recipes))
    known = {row.name for row in everything}
    for name in filters.names:
        if name not in known:
            raise NothingToBuild(f"there is no row {name!r}.{catalogue.nearest(name, known)} `lmsbuild matrix` has all")
    pythons = {row.python: minor_of(row.python) for row in everything}
    for python in filters.pythons:
        if python not in pythons:
            there = ", ".join(sorted(pythons, key=lambda known: (pythons[known], known)))
            raise NothingToBuild(f"nothing can be built for --python {python!r}: there are {there}")
    found = [row for row in everything if _passes(row, wanted)]
    if not found:
        raise NothingToBuild(
            "none of what can be built is what the filters ask for: `lmsbuild list` shows the tags and their official wheels"
        )
    if not filters.shard:
        return found
    part = shard(found, *_shard(filters.shard))
    if not part:
        raise NothingToBuild(f"--shard {filters.shard} has no row, as the filters leave {len(found)}: take fewer parts")
    return part


def shard(rows: Sequence[Row], part: int, parts: int) -> list[Row]:
    """One of `parts`, the first being 1. A wheel is in that of its package, which need not build it again then."""
    return list(chain.from_iterable(_pairs(rows)[part - 1 :: parts]))


def shards_needed(rows: Sequence[Row]) -> int:
    """Into how many parts the rows have to go, so that GitHub takes each."""
    sizes = [len(pair) for pair in _pairs(rows)]
    fewest = max(1, -(-len(rows) // MOST_JOBS))
    return next(parts for parts in count(fewest) if all(sum(sizes[part::parts]) <= MOST_JOBS for part in range(parts)))


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows in the form that `strategy.matrix` of GitHub's workflows takes."""
    return {"include": [{"name": row.name, **vars(row)} for row in rows]}


def _pairs(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows, each wheel with its package."""
    return [list(pair) for _, pair in groupby(rows, key=lambda row: row.stem)]


def _rows(patches: Path, recipes: Path) -> Iterator[Row]:
    subdirs = {platform.machine: platform.subdir for platform in read_platforms(recipes)}
    tags = sorted(catalogue.tags(patches), key=lambda tag: (tag.framework, tag.number))
    builds = {framework: debian_builds.by_tag(patches, framework) for framework in catalogue.frameworks(patches)}
    for tag in tags:
        for package in tag.packages:
            places = {place for name in catalogue.of_package(tag, package).wheels for place in _places(name)}
            for python, machine in sorted(places, key=lambda place: (minor_of(place[0]), place)):
                if machine in subdirs:
                    for kind in KINDS:
                        yield Row(tag.framework, tag.name, package, python, subdirs[machine], kind)
        for build in builds[tag.framework].get(tag.name, ()):
            if build.machine not in tag.machines and build.machine in subdirs:
                yield Row(tag.framework, tag.name, tag.package, build.python, subdirs[build.machine], "conda")


def _places(wheel: str) -> set[tuple[str, str]]:
    """The interpreters and machines that an official wheel is for, by its name, of which the catalogue checks the form."""
    _, abis, platforms = wheel.removesuffix(".whl").rsplit("-", 2)
    pythons = {python for abi in abis.split(".") if (python := python_of(abi))}
    return {(python, machine_of(platform)) for python in pythons for platform in platforms.split(".")}


def _checked(patches: Path, recipes: Path, filters: Filters) -> dict[str, set[str]]:
    """What each field of a row may be, where that is asked for. Raises what a name that does not exist raises."""
    for framework in filters.frameworks:
        catalogue.check_framework(patches, framework)
    named = {*filters.frameworks, *(catalogue.framework_of(patches, package) for package in filters.packages)}
    only = named.pop() if len(named) == 1 else None
    wanted = {
        "framework": set(filters.frameworks),
        "package": set(filters.packages),
        "python": set(filters.pythons),
        "platform": {find_platform(recipes, name).subdir for name in filters.platforms},
        "kind": set(filters.kinds),
        "name": set(filters.names),
    }
    if filters.tags:
        found = [catalogue.find_tag(patches, name, only) for name in filters.tags]
        wanted["full_tag"] = {tag.full_name for tag in found}
    return {field: values for field, values in wanted.items() if values}


def _passes(row: Row, wanted: dict[str, set[str]]) -> bool:
    return all(getattr(row, field) in values for field, values in wanted.items())


def _shard(text: str) -> tuple[int, int]:
    match = _SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise NothingToBuild(f"--shard takes a part such as 1/4, the first of four, not {text!r}")
    return int(match[1]), int(match[2])
