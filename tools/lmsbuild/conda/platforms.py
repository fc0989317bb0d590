"""The machines that conda packages are made for, read from recipes/platforms.toml."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.catalogue.catalogue import nearest, read_toml
from lmsbuild.errors import NoCompiler, WrongPlatform
from lmsbuild.wheel.target import Target, target_for


@dataclass(frozen=True)
class Platform:
    """A kind of machine."""

    machine: str  # as wheels call it, such as "aarch64"
    subdir: str  # as channels call it, such as "linux-aarch64"
    elf: str  # as ELF files call it
    compiler: str  # that builds for it on another machine
    package: str  # Debian's, with that compiler
    page: int  # bytes of memory in one, as its kernels have it


def read_platforms(recipes: Path) -> list[Platform]:
    table = read_toml(recipes / "platforms.toml")
    return [Platform(machine=machine, **row) for machine, row in table.items()]


def find_platform(recipes: Path, name: str) -> Platform:
    """The platform called `name`, as wheels or as channels call it. Raises WrongPlatform with the nearest one."""
    known = read_platforms(recipes)
    for platform in known:
        if name in (platform.machine, platform.subdir):
            return platform
    names = [platform.subdir for platform in known]
    raise WrongPlatform(f"there are no packages for {name!r}, only for {', '.join(names)}.{nearest(name, names)}")


def target_on(platform: Platform, python: str | None) -> Target:
    """The target for an interpreter on this platform, and the compiler for it: $CXX, or else the platform's own.

    Raises NoCompiler when this machine has no compiler for it.
    """
    running = target_for(python)
    if platform.machine == running.machine:
        return running
    if not os.environ.get("CXX"):
        if not shutil.which(platform.compiler):
            raise NoCompiler(
                f"there is no compiler for {platform.subdir}: `apt-get install {platform.package}` installs one, or name one "
                "in CXX"
            )
        os.environ["CXX"] = platform.compiler
    return Target(running.python, platform.machine, is_running=False)
