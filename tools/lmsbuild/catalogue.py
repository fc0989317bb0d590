"""The tags that the tool can build, read from patches/<framework>/tags.toml."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.errors import UnknownFramework, UnknownTag

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Release:
    """One version of a package in the registry."""

    package: str
    version: str  # public version, without a local label
    wheels: Mapping[str, str]  # sha256 of the official wheels, by file name


@dataclass(frozen=True)
class Tag(Release):
    """A release of a framework."""

    framework: str
    name: str  # upstream's tag, such as v2.13.0
    commit: str  # upstream's commit at that tag, as the official wheel states it
    standard: str  # C++ standard that the release's headers need, as -std= takes it
    supports: tuple[str, ...]  # devices whose tensors can be paged
    blobs: Mapping[str, str]  # git's hash of each file that the patch edits, by path

    @property
    def interpreters(self) -> list[str]:
        """The ABI tags of the known official wheels, such as cp312."""
        return sorted({name.split("-")[2] for name in self.wheels})

    @property
    def patch_name(self) -> str:
        return f"{self.framework}_{self.name}_large_model_support.patch"


def read_toml(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def frameworks(patches: Path) -> list[str]:
    """The frameworks that have tags."""
    return sorted(path.parent.name for path in patches.glob("*/tags.toml"))


def tags(patches: Path) -> list[Tag]:
    """Every tag of every framework, in the order of the files."""
    found = []
    for framework in frameworks(patches):
        table = read_toml(patches / framework / "tags.toml")
        for row in table["tag"]:
            found.append(
                Tag(
                    framework=framework,
                    name=row["name"],
                    commit=row["commit"],
                    package=table["package"],
                    version=row["version"],
                    standard=row["standard"],
                    supports=tuple(row["supports"]),
                    blobs=dict(row["blobs"]),
                    wheels=dict(row["wheels"]),
                )
            )
    return found


def find_tag(patches: Path, name: str, framework: str | None = None) -> Tag:
    """The tag called `name`; "2.13.0" is taken for "v2.13.0". Raises UnknownTag with the nearest one."""
    known = [tag for tag in tags(patches) if framework in (None, tag.framework)]
    for tag in known:
        if name in (tag.name, tag.name.removeprefix("v")):
            return tag
    names = [tag.name for tag in known]
    what = f"{framework} tag" if framework else "tag"
    raise UnknownTag(f"there is no {what} {name!r}.{nearest(name, names)} `lmsbuild list` shows them all.")


def check_framework(patches: Path, name: str) -> None:
    """Raises UnknownFramework, with the nearest name, when there is no such framework."""
    known = frameworks(patches)
    if name not in known:
        raise UnknownFramework(
            f"there is no framework or command {name!r}.{nearest(name, [*known, 'list', 'patch', 'try', 'doctor'])} "
            "`lmsbuild --help` shows the commands, `lmsbuild list` the frameworks."
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the known name nearest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f" Did you mean {close[0]!r}?" if close else ""
