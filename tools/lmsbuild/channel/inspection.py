"""A package read whole: what it says of itself, and all that is wrong with it."""

from __future__ import annotations

from typing import Any

from lmsbuild.channel import description
from lmsbuild.channel.contents import Contents, Look
from lmsbuild.conda import runpath
from lmsbuild.conda.package_file import INFO, Package
from lmsbuild.errors import DamagedPackage


def inspect(package: Package, look: Look | None = None) -> tuple[dict[str, Any], list[str]]:
    """What `Package.description` says, and the faults; `look` finds those of ELF files.

    Raises DamagedPackage when the package cannot be read to its end, or names itself otherwise than its file is named.
    """
    contents, described, faults = Contents(runpath.MAGIC, look), dict[str, Any](), list[str]()
    for member in package.members():
        table = package.table(member)
        if table is not None:
            described[member.name.removeprefix(INFO).removesuffix(".json")] = table
        faults += contents.add(member)
    package.check_identity(described)
    faults += description.faults(described)
    faults += contents.end(described.get("paths"))
    return described, faults


def sound(package: Package) -> dict[str, Any]:
    """What `Package.description` says. Raises DamagedPackage when anything is wrong with the package."""
    described, faults = inspect(package)
    if faults:
        more = f", and {len(faults) - 1} more like it" if len(faults) > 1 else ""
        raise DamagedPackage(f"{package.name} {faults[0]}{more}: build it again")
    return described
