"""What a library needs of the system's libraries, and the platform tag that is true for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from lmsbuild.errors import DamagedWheel

Version = tuple[int, ...]

# The first glibc whose manylinux platform also promises this symbol version of another system library.
_PROMISED: dict[str, tuple[tuple[Version, int], ...]] = {
    "GLIBCXX": (((3, 4, 19), 17), ((3, 4, 22), 24), ((3, 4, 24), 27), ((3, 4, 28), 31), ((3, 4, 29), 34),
                ((3, 4, 30), 35), ((3, 4, 33), 39)),
    "CXXABI": (((1, 3, 7), 17), ((1, 3, 10), 24), ((1, 3, 11), 27), ((1, 3, 12), 31), ((1, 3, 13), 34),
               ((1, 3, 15), 39)),
    "GCC": (((4, 8, 0), 17), ((7, 0, 0), 27), ((12, 0, 0), 35), ((14, 0, 0), 39)),
}  # fmt: skip
_NUMBERED = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_(\d+(?:\.\d+)*)")
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
    try:
        with library.open("rb") as file:
            names = set()
            for section in ELFFile(file).iter_sections():
                if isinstance(section, GNUVerNeedSection):
                    for needed, versions in section.iter_versions():
                        if needed.name not in provided:
                            names |= {version.name for version in versions}
            return sorted(names)
    except ELFError as error:
        raise DamagedWheel(f"{library.name} is no library: {error}") from error


def oldest_glibc(versions: Iterable[str]) -> Need:
    """The oldest glibc 2.x whose platform promises all these symbol versions."""
    worst = Need(0, "")
    for name in versions:
        minor = _glibc_minor(name)
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
    try:
        with library.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if isinstance(section, SymbolTableSection) and section.name == ".dynsym":
                    names = (symbol.name for symbol in section.iter_symbols())
                    return any(_NEW_STRING.search(name) and not _STANDARD.match(name) for name in names)
    except ELFError as error:
        raise DamagedWheel(f"{library.name} is no library: {error}") from error
    return False


def abi(library: Path) -> str:
    """The kind of C++ strings that the library was built with, as the catalogue calls it."""
    return "cxx11" if uses_new_strings(library) else "pre-cxx11"


def needed_library(library: Path, prefix: str) -> str | None:
    """The name of the library that this one asks for, among those that begin with `prefix`; None when it asks for none."""
    try:
        with library.open("rb") as file:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
            tags = dynamic.iter_tags("DT_NEEDED") if isinstance(dynamic, DynamicSection) else ()
            names = [str(vars(tag)["needed"]) for tag in tags]
            return next((name for name in names if name.startswith(prefix)), None)
    except ELFError as error:
        raise DamagedWheel(f"{library.name} is no library: {error}") from error


def exported_functions(library: Path, prefix: str) -> list[str]:
    """The functions that the library gives to others, as far as their names begin with `prefix`."""
    try:
        with library.open("rb") as file:
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
    except ELFError as error:
        raise DamagedWheel(f"{library.name} is no library: {error}") from error


def _glibc_minor(name: str) -> int | None:
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return 36 if name == "GLIBC_ABI_DT_RELR" else 17 if name in ("CXXABI_TM_1", "CXXABI_FLOAT128") else None
    family, version = match[1], tuple(int(part) for part in match[2].split("."))
    if family == "GLIBC":
        return version[1] if version[0] == 2 and len(version) > 1 else None
    for promised, minor in _PROMISED[family]:
        if version <= promised:
            return minor
    return None


def claimed_minor(platform: str) -> int | None:
    """The x of the glibc 2.x that a platform tag promises to run on; None when it promises none."""
    for old, new in _OLD_NAMES.items():
        platform = platform.replace(f"{old}_", f"{new}_", 1) if platform.startswith(f"{old}_") else platform
    match = _MANYLINUX.fullmatch(platform)
    return int(match[1]) if match else None
