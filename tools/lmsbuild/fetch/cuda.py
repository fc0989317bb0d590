"""CUDA's runtime for a build, headers and library, out of packages that match the wheel: no toolkit is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.catalogue.cuda_packages import has_library, releases
from lmsbuild.errors import DamagedWheel, WrongHash
from lmsbuild.fetch import download
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import WheelFile

_INCLUDE = re.compile(r"nvidia/\w+/include/(.+)")
_LIBRARY = re.compile(r"nvidia/\w+/lib/(libcudart\.so\.[\d.]+)")
_CARRIED = re.compile(r"/libcudart-[0-9a-f]+\.so\.[\d.]+$")


@dataclass(frozen=True)
class Runtime:
    """CUDA's runtime, unpacked."""

    include: Path
    library: Path | None  # None: there is no package with the one that the wheel needs
    functions: Path  # a library with the same functions, for this machine
    wheels: Mapping[str, str] = field(default_factory=dict)  # sha256 of those that it is out of, by name


def unpack(patches: Path, version: str, cache: Path, folder: Path) -> Runtime:
    """Fetches the runtime of this CUDA version and unpacks it into `folder`. Raises UnknownCuda or as download does."""
    folder.mkdir(exist_ok=True)
    target = target_for(None)  # the packages are the same for every interpreter
    wheels = {}
    for release in releases(patches, version, target.machine):
        file = download.fetch(release, target, cache)
        if file.name not in release.wheels:
            raise WrongHash(
                f"pip chose {file.name}, which patches/catalogue/cuda.toml does not list: check `pip config list`"
            )
        wheels[file.name] = release.wheels[file.name]
        with InputFile(file) as opened:
            download.check_known(release, opened, folder)
            with WheelFile(opened) as wheel:
                wheel.verify(lambda name: _place(name, folder), lambda done: None)
    libraries = sorted(folder.glob("lib/libcudart.so.*"))
    if len(libraries) != 1:
        raise DamagedWheel(f"the packages for CUDA {version} hold {len(libraries)} runtime libraries, not one")
    own = libraries[0] if has_library(patches, version) else None
    return Runtime(folder / "include", own, libraries[0], wheels)


def carried(names: Iterable[str]) -> str | None:
    """The CUDA runtime among the files of a wheel, if it carries one: under a name with a hash, beside its libraries."""
    return next((name for name in names if _CARRIED.search(name)), None)


def _place(name: str, folder: Path) -> Path | None:
    if header := _INCLUDE.fullmatch(name):
        return folder / "include" / header[1]
    if library := _LIBRARY.fullmatch(name):
        return folder / "lib" / library[1]
    return None
