"""What a library needs of the system's libraries, and the platform tag that is true for it."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from lmsbuild.elf.broken import broken

_GLIBC = re.compile(r"GLIBC_2\.(\d+)(?:\.\d+)*")
_STANDARD = re.compile(r"_Z+(?:GTt|G[RV]|T[A-Z])?N?K?(?:St|9__gnu_cxx)")  # a mangled name of libstdc++
_NEW_STRING = re.compile("7__cxx11|B5cxx11")  # the namespace of what has them, and the tag of what returns them
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)")
_OLD_NAMES = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}


@dataclass(frozen=True)
class Need:
    """The oldest glibc 2.x that promises everything a library needs, and what asks for it."""

    minor: int | None  # None: no manylinux platform promises it
    because: str  # such as "GLIBC_2.34"


def needed_versions(library: Path, provided: Collection[str] = ()) -> list[str]:
    """The symbol versions that the library asks for, such as "GLIBCXX_3.4.29".

    `provided` are libraries that come with the wheel or its requirements, such as "libcudart.so.12".
    """
    with library.open("rb") as file:
        return versions_in(file, library.name, provided)


def versions_in(library: IO[bytes], name: str, provided: Collection[str] = ()) -> list[str]:
    """The same of a library that is called `name` and read from a stream."""
    with broken(name):
        names = set()
        for section in ELFFile(library).iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for needed, versions in section.iter_versions():
                    if needed.name not in provided:
                        names |= {version.name for version in versions}
        return sorted(names)


def glibc_of(version: str) -> int | None:
    """The x of the glibc 2.x that has a symbol version such as "GLIBC_2.34"; None when it is another library's."""
    match = _GLIBC.fullmatch(version)
    return int(match[1]) if match else None


def oldest_glibc(versions: Iterable[str], machine: str) -> Need:
    """The oldest glibc 2.x whose platform promises all these symbol versions on a machine such as "x86_64"."""
    worst = Need(0, "")
    for name in versions:
        minor = _glibc_minor(name, machine)
        if minor is None:
            return Need(None, name)
        if worst.minor is not None and minor > worst.minor:
            worst = Need(minor, name)
    return worst


def true_platforms(claimed: Iterable[str], need: Need, machine: str, own_minor: int) -> list[str]:
    """The platform tags of `claimed` that hold for a library with this need; one raised tag when none does.

    `own_minor` is this machine's glibc 2.x. A library that needs a newer platform than that still runs here, where it was
    built, but no manylinux tag would let pip install it.
    """
    kept = []
    for platform in claimed:
        minor = claimed_minor(platform)
        if minor is None or (need.minor is not None and need.minor <= minor):
            kept.append(platform)
    if kept:
        return kept
    if need.minor is None or need.minor > own_minor:
        return [f"linux_{machine}"]
    return [f"manylinux_2_{need.minor}_{machine}"]


def uses_new_strings(library: Path) -> bool:
    """Whether the library was built with the C++11 strings of libstdc++ (_GLIBCXX_USE_CXX11_ABI=1).

    Only its own names count: a library that carries parts of libstdc++ exports those of both kinds.
    """
    with library.open("rb") as file, broken(library.name):
        for section in ELFFile(file).iter_sections():
            if isinstance(section, SymbolTableSection) and section.name == ".dynsym":
                names = (symbol.name for symbol in section.iter_symbols())
                return any(_NEW_STRING.search(name) and not _STANDARD.match(name) for name in names)
    return False


def abi(library: Path) -> str:
    """The kind of C++ strings that the library was built with, as the catalogue calls it."""
    return "cxx11" if uses_new_strings(library) else "pre-cxx11"


def needed_library(library: Path, prefix: str) -> str | None:
    """The name of the library that this one asks for, among those that begin with `prefix`; None when it asks for none."""
    with library.open("rb") as file, broken(library.name):
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        tags = dynamic.iter_tags("DT_NEEDED") if isinstance(dynamic, DynamicSection) else ()
        names = [str(vars(tag)["needed"]) for tag in tags]
        return next((name for name in names if name.startswith(prefix)), None)


def exported_functions(library: Path, prefix: str) -> list[str]:
    """The functions that the library gives to others, as far as their names begin with `prefix`."""
    with library.open("rb") as file, broken(library.name):
        section = ELFFile(file).get_section_by_name(".dynsym")
        symbols = section.iter_symbols() if isinstance(section, SymbolTableSection) else ()
        return sorted(
            {
                symbol.name
                for symbol in symbols
                if symbol.name.startswith(prefix)
                and symbol["st_info"]["type"] == "STT_FUNC"
                and symbol["st_shndx"] != "SHN_UNDEF"
            }
        )


def _glibc_minor(name: str, machine: str) -> int | None:
    promised = _promised(machine).get(name)
    # A manylinux platform is named for its glibc (PEP 600), also one that auditwheel has no row for.
    minors = [minor for minor in (promised, glibc_of(name)) if minor is not None]
    return min(minors, default=None)


@functools.cache
def _promised(machine: str) -> dict[str, int]:
    """The x of the first manylinux_2_x that promises a symbol version, by the version's name."""
    from auditwheel.architecture import Architecture  # here, since few commands need it
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    promised: dict[str, int] = {}
    for policy in WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine)):
        minor = claimed_minor(policy.name)
        if minor is not None:  # not the plain linux platform, which promises nothing
            for family, versions in policy.symbol_versions.items():
                for version in versions:
                    name = f"{family}_{version}"
                    promised[name] = min(minor, promised.get(name, minor))
    return promised


def claimed_minor(platform: str) -> int | None:
    """The x of the glibc 2.x that a platform tag promises to run on; None when it promises none."""
    for old, new in _OLD_NAMES.items():
        platform = platform.replace(f"{old}_", f"{new}_", 1) if platform.startswith(f"{old}_") else platform
    match = _MANYLINUX.fullmatch(platform)
    return int(match[1]) if match else None
