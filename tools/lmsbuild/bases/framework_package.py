"""A conda package of a framework as a base for the graft: the same files as a wheel.

For machines without official wheels, whose community builds packages. A wheel has its libraries beside its Python files, and so
do packages that were made of one; where a distribution has them in a package of their own, both are taken together.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lmsbuild.bases import site_packages
from lmsbuild.conda import package_file
from lmsbuild.conda.package_file import SUFFIXES
from lmsbuild.conda.platforms import Platform
from lmsbuild.errors import WrongPlatform, WrongVersion
from lmsbuild.wheel.input_file import InputFile

_PLACE = re.compile(r"lib/python3\.(\d+)/site-packages/(.+)")
_MOST_LINKS = 40  # that lead from one to the next, as the system takes
_HEADERS = ("ATen", "c10", "caffe2", "torch")  # the folders of them that are the framework's


@dataclass(frozen=True)
class _Contents:
    """What packages hold, unpacked."""

    files: dict[str, Path]  # by the path in an environment
    links: dict[str, tuple[str, str]]  # where each may lead: as a symbolic link, and as an entry of the archive

    @cached_property
    def _ordered(self) -> list[str]:
        """The paths of the files; to be asked for when all are there."""
        return sorted(self.files)

    def below(self, folder: str) -> dict[str, Path]:
        """The files below a folder, by their paths there."""
        begin, end = f"{folder}/", f"{folder}0"  # the character after the slash
        paths = self._ordered[bisect_left(self._ordered, begin) : bisect_left(self._ordered, end)]
        return {path.removeprefix(begin): self.files[path] for path in paths}


def is_package(path: Path) -> bool:
    """Whether the file's name is a conda package's."""
    return path.name.endswith(SUFFIXES)


def requirements(packages: Sequence[InputFile]) -> tuple[str, ...]:
    """What the packages require of an environment, but each other; it need not be in the metadata of what pip installs.

    Raises DamagedPackage or NoSuchFile.
    """
    own = {package_file.identity(package.path.name).name for package in packages}
    needs = [text for file in packages for text in package_file.read_description(file)["index"].get("depends", ())]
    return tuple(dict.fromkeys(text for text in needs if text.split()[0] not in own))


def as_wheel(
    packages: Sequence[InputFile], framework: str, libraries: str, version: str, platform: Platform, folder: Path
) -> Path:
    """Writes the packages' files as a wheel of `framework` into `folder` and returns it; `libraries` is its folder of them.

    Raises WrongVersion or WrongPlatform when a package is another's, DamagedPackage or NoSuchFile.
    """
    for package in packages:
        check(package, version, platform)
    contents = _unpack(packages, folder / "packages")
    named = " and ".join(package.path.name for package in packages)
    site = folder / "site"
    minors, dist_infos = _place(contents, framework, site, named)
    if len(packages) > 1:
        _add_libraries(contents, site, libraries)
        site_packages.relink(site, libraries)
    stated = re.compile(rf"{framework}-{re.escape(version)}(?:\+[\w.]+)?\.dist-info")
    if len(dist_infos) != 1 or len(minors) != 1 or not all(map(stated.fullmatch, dist_infos)):
        raise WrongVersion(
            f"{named} does not hold what pip installs of {framework} {version}: give a package that has the whole "
            "framework, each part of one that is split (--base again), or a wheel"
        )
    abi = f"cp3{minors.pop()}"
    return site_packages.pack(site, dist_infos.pop(), abi, f"linux_{platform.machine}", folder)


def check(package: Path | InputFile, version: str, platform: Platform) -> None:
    """Raises WrongVersion or WrongPlatform when a package says that it is another's, DamagedPackage or NoSuchFile."""
    index = package_file.read_description(package)["index"]
    name = package.path.name if isinstance(package, InputFile) else package.name
    if index.get("version") != version:
        raise WrongVersion(
            f"{name} is version {index.get('version')}, but {version} is needed: give a package of that version"
        )
    if index.get("subdir") != platform.subdir:
        raise WrongPlatform(
            f"{name} is for {index.get('subdir')}, not for {platform.subdir}: give a package for that platform, or "
            "another --platform"
        )


def _unpack(packages: Sequence[InputFile], folder: Path) -> _Contents:
    """Writes what the packages have for an environment's folders lib and include; of a name that several have, the first."""
    contents = _Contents({}, {})
    for package in packages:
        for member in package_file.members(package):
            name = posixpath.normpath(member.name)
            if not name.startswith(("lib/", "include/", "bin/")) or "__pycache__" in name or name in contents.files:
                continue
            if member.file is None:
                leads = (f"{posixpath.dirname(name)}/{member.target}", member.target)
                contents.links.setdefault(name, (posixpath.normpath(leads[0]), posixpath.normpath(leads[1])))
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(member.file, file)
            target.chmod(0o755 if member.mode & 0o111 else 0o644)
            contents.files[name] = target
    return contents


def _place(contents: _Contents, framework: str, site: Path, named: str) -> tuple[set[str], set[str]]:
    """Puts what pip installs into `site`, with what links there lead to: the minor versions of Python and the dist-info folders
    that were found.
    """
    minors: set[str] = set()
    dist_infos: set[str] = set()
    for name in (*contents.files, *contents.links):
        match = _PLACE.fullmatch(name)
        if match is None:
            continue
        place = match[2]
        minors.add(match[1])
        top = place.split("/")[0]
        if top.endswith(".dist-info"):
            if not top.startswith(f"{framework}-"):
                continue
            dist_infos.add(top)
            if place.endswith("/RECORD"):
                continue
        found = _behind(contents, name)
        if not found and top == framework:
            raise WrongVersion(
                f"{named} has {name} as a link to {contents.links[name][0]}, which is not in it: give the package that has "
                f"the libraries, such as lib{framework}, too (--base again)"
            )
        for below, source in found.items():
            _copy(source, site / place / below)
    return minors, dist_infos


def _behind(contents: _Contents, name: str) -> dict[str, Path]:
    """The file of this name, or those below the folder that it leads to, by their paths there; empty: it leads nowhere."""
    left, met = [name], set[str]()
    while left and len(met) <= _MOST_LINKS:
        at = left.pop()
        if at in contents.files:
            return {"": contents.files[at]}
        if below := contents.below(at):
            return below
        if at not in met:
            met.add(at)
            left += reversed(contents.links.get(at, ()))
    return {}


def _add_libraries(contents: _Contents, site: Path, libraries: str) -> None:
    """Puts what no link leads to among the others: libraries, by the name that others need them by, and headers."""
    for name, source in contents.files.items():
        top, _, rest = name.partition("/")
        if top == "lib" and "/" not in rest and ".so" in rest and (elf := site_packages.read(source)):
            target = site / libraries / (elf.name or rest)
        elif top == "include" and rest.split("/")[0] in _HEADERS:
            target = site / libraries.split("/")[0] / name
        else:
            continue
        if not target.exists() and not (site / libraries / rest).exists():
            _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
