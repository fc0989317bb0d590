"""Solving and installing, as every client of a channel does it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rattler


@dataclass(frozen=True)
class Environment:
    """A prefix that the package is installed in."""

    prefix: Path
    packages: frozenset[str]  # names of all that is in it

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a shell in which it is activated."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, "PATH": f"{self.prefix}/bin:{os.environ['PATH']}", "CONDA_PREFIX": str(self.prefix)}


def solve(
    *channels: str, specs: tuple[str, ...] = ("pytorch",), strict: bool = True, subdir: str = "", glibc: str = ""
) -> list[rattler.RepoDataRecord]:
    """What an empty environment gets; `channels` in the order of their priority. With `subdir`, on a machine of that kind that
    has this version of the C library.
    """
    virtual: Sequence[rattler.GenericVirtualPackage | rattler.VirtualPackage] = rattler.VirtualPackage.detect(
        rattler.VirtualPackageOverrides.from_env()
    )
    if subdir:
        name, version = rattler.PackageName("__glibc"), rattler.Version(glibc)
        virtual = [rattler.GenericVirtualPackage(name, version, rattler.BuildString("0"))]
    priority = rattler.ChannelPriority.Strict if strict else rattler.ChannelPriority.Disabled
    return asyncio.run(
        rattler.solve(
            [rattler.Channel(name) for name in channels],
            list(specs),
            platforms=[subdir, "noarch"] if subdir else None,
            virtual_packages=virtual,
            channel_priority=priority,
        )
    )


def install(records: list[rattler.RepoDataRecord], prefix: Path, cache: Path, subdir: str | None = None) -> None:
    platform = rattler.Subdir(subdir) if subdir else None
    asyncio.run(rattler.install(records, prefix, cache_dir=cache, platform=platform, show_progress=False))
