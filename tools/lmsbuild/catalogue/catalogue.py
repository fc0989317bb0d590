"""The tags that the tool can build, read from patches/catalogue/<framework>/tags.toml."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmsbuild.catalogue import forms
from lmsbuild.errors import AmbiguousTag, BadSources, UnknownFramework, UnknownPackage, UnknownTag
from lmsbuild.published.regular_file import read_file
from lmsbuild.wheel.target import machine_of

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

    packages: tuple[str, ...]  # that the release is published as; the first is the one that the row describes
    framework: str
    name: str  # upstream's tag, such as v2.13.0
    commit: str  # upstream's commit at that tag, as the official wheel states it: whole, or its first digits
    cuda: str  # CUDA version of the official wheel, such as 12.4; empty: it has none
    abi: str  # C++ strings of the official wheel: "cxx11" or "pre-cxx11"
    standard: str  # C++ standard that the release's headers need, as -std= takes it
    generation: str  # the first release with the same set of interfaces; what follows from it is in series.toml
    supports: tuple[str, ...]  # devices whose tensors can be paged
    trained: str  # the Python with which the patched wheel trained a model when the tag was added; empty: none
    blobs: Mapping[str, str]  # git's hash of each file that the patch edits, by path
    records: Mapping[str, str]  # sha256 of the RECORD in the wheel that the row was read off, by that wheel's name

    @property
    def interpreters(self) -> list[str]:
        """The ABI tags of the known official wheels, such as cp312."""
        return sorted({name.split("-")[-2] for name in self.wheels})

    @property
    def machines(self) -> dict[str, list[str]]:
        """The ABI tags of the known official wheels for each kind of machine, such as cp312 for x86_64."""
        found: dict[str, set[str]] = {}
        for name in self.wheels:
            _, abi, platforms = name.removesuffix(".whl").rsplit("-", 2)
            for platform in platforms.split("."):
                found.setdefault(machine_of(platform), set()).add(abi)
        return {machine: sorted(found[machine]) for machine in sorted(found, reverse=True)}

    def lacking(self, interpreter: str, machine: str) -> str:
        """What to say when no official wheel is known for an ABI tag and a kind of machine; empty: one is, or none at all."""
        known = self.machines.get(machine, [])
        if not self.wheels or interpreter in known:
            return ""
        there = f"there are some for {', '.join(known)}" if known else "nor any other for it"
        return f"no official wheel of {self.package} {self.version} is known for {interpreter} on {machine}, {there}"

    @property
    def full_name(self) -> str:
        """The tag as every command takes it, whatever tags other frameworks have."""
        return f"{self.framework}:{self.name}"

    @property
    def number(self) -> tuple[int, ...]:
        """Orders tags."""
        return number(self.name)

    def is_within(self, since: str, until: str) -> bool:
        """Whether the tag is none before `since` and none after `until`; empty: no bound."""
        return (not since or self.number >= number(since)) and (not until or self.number <= number(until))

    @property
    def patch_name(self) -> str:
        """What the tag's patches are called when they are joined to one file."""
        return f"{self.framework}_{self.name}_large_model_support.patch"


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a file, of the form that files of its name have. Raises BadSources."""
    try:
        table = tomllib.loads(read_file(path).decode())
    except OSError as error:
        raise BadSources(
            f"cannot read {path}: {error.strerror}; install lmsbuild again, or put the file back"
        ) from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, a number too long, or tables in tables in tables
        raise BadSources(f"{path} cannot be read as TOML: {error}") from error
    forms.check(path, table)
    return table


def number(name: str) -> tuple[int, ...]:
    """The numbers in a tag's name, which order tags: (2, 13, 0) for v2.13.0. Raises BadSources."""
    if not forms.TAG.fits(name):
        raise BadSources(f"{name!r} is not a tag such as v2.13.0")
    return tuple(int(part) for part in name[1:].split("."))


def frameworks(patches: Path) -> list[str]:
    """The frameworks that have tags."""
    return sorted(path.parent.name for path in patches.glob("catalogue/*/tags.toml"))


def tags(patches: Path) -> list[Tag]:
    """Every tag of every framework, in the order of the files."""
    found = []
    for framework in frameworks(patches):
        table = read_toml(patches / "catalogue" / framework / "tags.toml")
        for row in table.get("tag", ()):
            found.append(
                Tag(
                    packages=(table["package"], *table.get("variants", ())),
                    framework=framework,
                    name=row["name"],
                    commit=row["commit"],
                    package=table["package"],
                    version=row["version"],
                    cuda=row.get("cuda", ""),
                    abi=row["abi"],
                    standard=row["standard"],
                    generation=row["generation"],
                    supports=tuple(row["supports"]),
                    trained=row.get("trained", ""),
                    blobs=dict(row["blobs"]),
                    records=dict(row.get("records", {})),
                    wheels=dict(row["wheels"]),
                )
            )
    return found


def packages(patches: Path, framework: str) -> tuple[str, ...]:
    """The packages that a framework is published as; the first is the one that the rows describe."""
    table = read_toml(patches / "catalogue" / framework / "tags.toml")
    return (table["package"], *table.get("variants", ()))


def package_words(patches: Path, framework: str, package: str) -> list[str]:
    """The option that names the package, for the commands of a framework that has several."""
    return ["--package", package] if len(packages(patches, framework)) > 1 else []


def published(patches: Path) -> dict[str, str]:
    """The frameworks, by every package that they are published as."""
    return {name: framework for framework in frameworks(patches) for name in packages(patches, framework)}


def framework_of(patches: Path, package: str) -> str:
    """The framework that is published as this package. Raises UnknownPackage."""
    known = published(patches)
    if package not in known:
        raise UnknownPackage(f"{package} is the package of no framework: there are {', '.join(sorted(known))}")
    return known[package]


def check_package(framework: str, package: str, known: Sequence[str]) -> None:
    """Raises UnknownPackage when the framework's packages, which are `known`, have none of that name."""
    if package not in known:
        raise UnknownPackage(f"{framework} is not published as {package!r}, but as {' or '.join(known)}")


def of_package(tag: Tag, package: str | None) -> Tag:
    """The tag as if it had one of its packages and its wheels alone; None: as it is. Raises UnknownPackage."""
    if package is None:
        return tag
    check_package(tag.framework, package, tag.packages)
    own = {name: digest for name, digest in tag.wheels.items() if name.split("-")[0].replace("_", "-") == package}
    return replace(tag, package=package, packages=(package,), wheels=own)


def find_tag(patches: Path, name: str, framework: str | None = None) -> Tag:
    """The tag called `name`, such as v2.13.0, 2.13.0, or, when several frameworks have one of that name, pytorch:v2.13.0.

    `framework` is the only one that it may be of. Raises UnknownTag with the nearest one, or AmbiguousTag.
    """
    if ":" in name:
        given, _, rest = name.partition(":")
        check_framework(patches, given)
        if framework not in (None, given):
            raise UnknownTag(f"{name} is a tag of {given}, not of {framework}: use the command for {given}")
        framework, name = given, rest
    known = [tag for tag in tags(patches) if framework in (None, tag.framework)]
    found = [tag for tag in known if name in (tag.name, tag.name.removeprefix("v"))]
    if len(found) == 1:
        return found[0]
    if found:
        choice = " or ".join(tag.full_name for tag in found)
        raise AmbiguousTag(f"{len(found)} frameworks have a tag {found[0].name}: write {choice}")
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
