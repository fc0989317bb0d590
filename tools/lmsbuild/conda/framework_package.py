"""A conda package of a framework as a base for the graft: the same files as a wheel.

For machines without official wheels, whose community builds packages. The package has to have its libraries beside its Python
files, as wheels have them.
"""

from __future__ import annotations

import re
import stat
import zipfile
from pathlib import Path

from lmsbuild.conda import package_file
from lmsbuild.conda.package_file import SUFFIXES
from lmsbuild.conda.platforms import Platform
from lmsbuild.errors import WrongPlatform, WrongVersion
from lmsbuild.wheel.wheel import record_hash, record_text

_PLACE = re.compile(r"lib/python3\.(\d+)/site-packages/(.+)")
_DATE = (2020, 1, 1, 0, 0, 0)


def is_package(path: Path) -> bool:
    """Whether the file's name is a conda package's."""
    return path.name.endswith(SUFFIXES)


def requirements(package: Path) -> tuple[str, ...]:
    """What the package requires of an environment, which need not be in the metadata of what pip installs.

    Raises DamagedPackage or NoSuchFile.
    """
    return tuple(package_file.read_description(package)["index"].get("depends", ()))


def as_wheel(package: Path, framework: str, version: str, platform: Platform, folder: Path) -> Path:
    """Writes the package's files as a wheel of `framework` into `folder` and returns it.

    Raises WrongVersion or WrongPlatform when the package is another's, DamagedPackage or NoSuchFile.
    """
    index = package_file.read_description(package)["index"]
    if index.get("version") != version:
        raise WrongVersion(
            f"{package.name} is version {index.get('version')}, but {version} is needed: give a package of that version"
        )
    if index.get("subdir") != platform.subdir:
        raise WrongPlatform(
            f"{package.name} is for {index.get('subdir')}, not for {platform.subdir}: give a package for that platform, or "
            "another --platform"
        )
    unfinished = folder / "base"
    rows: list[tuple[str, str, str]] = []
    minors: set[str] = set()
    dist_infos: set[str] = set()
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for member in package_file.members(package):
            match = _PLACE.fullmatch(member.name)
            if match is None or member.file is None or "__pycache__" in match[2]:
                continue
            name = match[2]
            minors.add(match[1])
            top = name.split("/")[0]
            if top.endswith(".dist-info"):
                if not top.startswith(f"{framework}-"):
                    continue
                dist_infos.add(top)
                if name.endswith("/RECORD"):
                    continue
            data = member.file.read()
            rows.append((name, record_hash(data), str(len(data))))
            _add(wheel, name, data, member.mode)
        stated = re.compile(rf"{framework}-({re.escape(version)}(?:\+[\w.]+)?)\.dist-info")
        names = [match[1] for match in map(stated.fullmatch, dist_infos) if match]
        if len(names) != 1 or len(dist_infos) != 1 or len(minors) != 1:
            raise WrongVersion(
                f"{package.name} does not hold what pip installs of {framework} {version}: give a package that has the whole "
                "framework, or a wheel"
            )
        record = f"{framework}-{names[0]}.dist-info/RECORD"
        _add(wheel, record, record_text([*rows, (record, "", "")]), 0o644)
    abi = f"cp3{minors.pop()}"
    return unfinished.rename(folder / f"{framework}-{names[0]}-{abi}-{abi}-linux_{platform.machine}.whl")


def _add(wheel: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = (stat.S_IFREG | stat.S_IMODE(mode)) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, data)
