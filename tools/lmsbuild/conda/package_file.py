"""A conda package file: what it says of itself, and its members.

Two formats: `.conda`, an archive of two tar files, and the older `.tar.bz2`, one tar file.
"""

from __future__ import annotations

import bz2
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lmsbuild.conda import tools
from lmsbuild.errors import DamagedPackage, NoSuchFile

SUFFIXES = (".conda", ".tar.bz2")
_INFO = "info/"


@dataclass(frozen=True)
class Member:
    """A file or link in a package, with its contents while it is the current one."""

    name: str  # path in the prefix; what describes the package is below info/
    mode: int
    target: str  # where a link leads; "" for a file
    file: IO[bytes] | None  # None for a link


@dataclass(frozen=True)
class Identity:
    """The three names that a package's file name consists of."""

    name: str
    version: str
    build: str

    def __str__(self) -> str:
        return f"{self.name}-{self.version}-{self.build}"


def identity(file_name: str) -> Identity:
    """Raises DamagedPackage when this is not the name of a package's file."""
    for suffix in SUFFIXES:
        parts = file_name.removesuffix(suffix).rsplit("-", 2)
        if file_name.endswith(suffix) and len(parts) == 3 and all(parts):
            return Identity(*parts)
    raise DamagedPackage(
        f"{file_name} is not the name of a conda package, which is NAME-VERSION-BUILD.conda or .tar.bz2: "
        "keep the name under which it was built"
    )


def read_description(path: Path) -> dict[str, Any]:
    """The JSON files below info/ that an index is made of, by name: index, paths, run_exports, about.

    Checks that index.json names the package as its file is named. Raises DamagedPackage or NoSuchFile.
    """
    if not path.is_file():
        raise NoSuchFile(f"there is no file {path}")
    named = identity(path.name)
    wanted = {f"{_INFO}{name}.json": name for name in ("index", "paths", "run_exports", "about")}
    found: dict[str, Any] = {}
    with _failures(path):
        for member in members(path, only_info=True):
            if member.name in wanted and member.file:
                found[wanted[member.name]] = json.load(member.file)
    if "index" not in found:
        raise DamagedPackage(f"{path.name} has no {_INFO}index.json: it is no conda package")
    for name, table in found.items():
        if not isinstance(table, dict) or (name == "paths" and not _lists_paths(table)):
            raise DamagedPackage(f"{path.name} has an {_INFO}{name}.json that is not as it has to be: build it again")
    stated = found["index"]
    own = Identity(*(str(stated.get(key, "")) for key in ("name", "version", "build")))
    if own != named:
        raise DamagedPackage(f"{path.name} says that it is {own}: keep the name under which it was built")
    return found


def _lists_paths(table: dict[str, Any]) -> bool:
    rows = table.get("paths", [])
    return isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get("_path"), str) for row in rows)


def members(path: Path, *, only_info: bool = False) -> Iterator[Member]:
    """The files and links of a package, in its order; with `only_info`, those that describe it.

    A member's contents must be read before the next one is asked for. Raises DamagedPackage or NoSuchFile.
    """
    with _failures(path), ExitStack() as stack:
        for stream in _tars(path, only_info, stack):
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for info in tar:
                    name = info.name.removeprefix("./")
                    if only_info and not name.startswith(_INFO):
                        continue
                    if info.isfile():
                        yield Member(name, info.mode, "", tar.extractfile(info))
                    elif info.issym() or info.islnk():
                        yield Member(name, info.mode, info.linkname, None)
            while stream.read(1 << 20):  # what follows the last member has a checksum, too
                pass


def _tars(path: Path, only_info: bool, stack: ExitStack) -> Iterator[IO[bytes]]:
    if path.name.endswith(".tar.bz2"):
        with bz2.open(path) as stream:
            yield stream
        return
    zstandard = tools.zstandard()
    archive = stack.enter_context(zipfile.ZipFile(path))
    if not only_info and archive.testzip():
        raise zipfile.BadZipFile("a checksum differs")
    for part in ("info", "pkg"):
        if part == "info" or not only_info:
            names = [name for name in archive.namelist() if name.startswith(f"{part}-") and name.endswith(".tar.zst")]
            if len(names) != 1:
                raise zipfile.BadZipFile(f"it has {len(names)} parts called {part}")
            packed = stack.enter_context(archive.open(names[0]))
            unpacked = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
            yield stack.enter_context(io.BufferedReader(unpacked))


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file makes the readers raise into one failure."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoSuchFile(f"there is no file {path}") from error
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, KeyError, ValueError, OSError) as error:
        raise DamagedPackage(
            f"{path.name} is truncated, damaged or no conda package ({error}): get it again"
        ) from error
    except Exception as error:
        if type(error).__module__.startswith("zstandard"):
            raise DamagedPackage(f"{path.name} is damaged ({error}): get it again") from error
        raise
