"""A conda package file: what it says of itself, and its members.

Two formats: `.conda`, an archive of two tar files, and the older `.tar.bz2`, one tar file. A file is opened once, so that
what is hashed is what is read.
"""

from __future__ import annotations

import re
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from lmsbuild.conda import archive
from lmsbuild.errors import DamagedPackage, NoSuchFile
from lmsbuild.published import strict_json
from lmsbuild.published.regular_file import open_file
from lmsbuild.wheel.input_file import InputFile

SUFFIXES = (".conda", ".tar.bz2")
INFO = "info/"
# The JSON files below info/ that an index is made of, or by which clients install; and the largest that each may be, in bytes.
_TABLES = {"index": 1 << 20, "about": 1 << 20, "run_exports": 1 << 20, "link": 1 << 20, "paths": 1 << 26}
# As clients and the names of files and addresses take them (CEP 26), and nothing that begins like a hidden file.
_NAME = re.compile(r"(?!__)[a-z0-9_][a-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9_.+!]+")
_BUILD = re.compile(r"[A-Za-z0-9_.+]+")


@dataclass(frozen=True)
class Reader:
    """A member's contents, read once from their beginning."""

    package: str  # the file's name
    file: IO[bytes]

    def read(self, size: int = -1) -> bytes:
        """Raises DamagedPackage."""
        with _failures(self.package):
            return self.file.read(size)


@dataclass(frozen=True)
class Member:
    """What a package has below one name, with its contents while it is the current one."""

    name: str  # path in the prefix; what describes the package is below info/
    mode: int
    kind: str  # "file", "folder", "link", "hard link", or what else it is, which no package should have
    target: str  # where a link leads, or which member is the same file; "" for the others
    file: Reader | None  # None for all but a file
    part: str = ""  # of a .conda file: "info" or "pkg"


@dataclass(frozen=True)
class Identity:
    """The three names that a package's file name consists of."""

    name: str
    version: str
    build: str

    def __str__(self) -> str:
        return f"{self.name}-{self.version}-{self.build}"


@dataclass(frozen=True)
class Package:
    """A package's file, open."""

    name: str  # of the file
    file: IO[bytes]
    size: int  # bytes

    def members(self, *, only_info: bool = False) -> Iterator[Member]:
        """What the package has, in its order; with `only_info`, what describes it.

        A member's contents must be read before the next one is asked for. Raises DamagedPackage.
        """
        with _failures(self.name):
            for part, stream in archive.tars(self.file, self.name, self.size, only_info=only_info):
                source = cast(IO[bytes], stream)  # of which tarfile only reads
                with tarfile.open(fileobj=source, mode="r|", bufsize=archive.CHUNK) as tar:
                    for info in tar:
                        if info.size < 0 or info.issparse():
                            raise archive.Damaged(f"{info.name!r} has a size, or holes, that no file may have")
                        end = tar.offset
                        stream.allow(end)
                        name = info.name.removeprefix("./")
                        if not only_info or name.startswith(INFO):
                            file = tar.extractfile(info) if info.isreg() else None
                            contents = Reader(self.name, file) if file else None
                            yield Member(name, info.mode, _kind(info), info.linkname, contents, part)
                    stream.check_end(tar.offset)

    def table(self, member: Member) -> dict[str, Any] | None:
        """What one of these JSON files says; None for another member. Raises DamagedPackage."""
        name = member.name.removeprefix(INFO).removesuffix(".json")
        if member.name != f"{INFO}{name}.json" or name not in _TABLES or member.file is None:
            return None
        with _failures(f"{self.name} ({member.name})"):
            found = strict_json.parse(member.file.read(_TABLES[name] + 1), _TABLES[name])
        if not isinstance(found, dict) or (name == "paths" and not _lists_paths(found)):
            raise DamagedPackage(f"{self.name} has an {member.name} that is not as it has to be: build it again")
        return found

    def description(self) -> dict[str, Any]:
        """These JSON files below info/, by name: index, paths, run_exports, about, link.

        Checks that index.json names the package as its file is named. Raises DamagedPackage.
        """
        identity(self.name)
        tables = ((member.name, self.table(member)) for member in self.members(only_info=True))
        found = {name.removeprefix(INFO).removesuffix(".json"): table for name, table in tables if table is not None}
        self.check_identity(found)
        return found

    def check_identity(self, described: dict[str, Any]) -> None:
        """Raises DamagedPackage when there is no index.json, or it says that this is another package."""
        if "index" not in described:
            raise DamagedPackage(f"{self.name} has no {INFO}index.json: it is no conda package")
        stated = described["index"]
        own = Identity(*(str(stated.get(key, "")) for key in ("name", "version", "build")))
        if own != identity(self.name):
            raise DamagedPackage(
                f"{self.name} says that it is {shown(str(own))}: keep the name under which it was built"
            )


def _misnamed(name: str, own: str) -> DamagedPackage:
    return DamagedPackage(f"{name} says that it is {shown(own)}: keep the name under which it was built")


def shown(text: str) -> str:
    """A text from a package as a terminal may have it."""
    return text if text.isprintable() else ascii(text)


def stem(file_name: str) -> str:
    """What the file of a package is called, less its suffix."""
    return file_name.removesuffix(SUFFIXES[0]).removesuffix(SUFFIXES[1])


def identity(file_name: str) -> Identity:
    """Raises DamagedPackage when this is not the name of a package's file."""
    for suffix in SUFFIXES:
        parts = file_name.removesuffix(suffix).rsplit("-", 2)
        if file_name.endswith(suffix) and len(parts) == 3:
            found = Identity(*parts)
            if _NAME.fullmatch(found.name) and _VERSION.fullmatch(found.version) and _BUILD.fullmatch(found.build):
                return found
    raise DamagedPackage(
        f"{shown(file_name)} is not the name of a conda package, which is NAME-VERSION-BUILD.conda or .tar.bz2: "
        "keep the name under which it was built"
    )


@contextmanager
def opened(source: Path | InputFile, name: str = "") -> Iterator[Package]:
    """Opens the file of a package, which is called `name` if not as the file. Raises NoSuchFile, or DamagedPackage when it cannot be read."""
    if isinstance(source, InputFile):
        yield Package(name or source.path.name, source.stream(), source.size)
        return
    try:
        file = open_file(source)
    except FileNotFoundError as error:
        raise NoSuchFile(f"there is no file {source}") from error
    except OSError as error:
        raise DamagedPackage(f"{shown(str(source))} cannot be read: {error.strerror}") from error
    with file:
        yield Package(name or source.name, file, file.seek(0, 2))


def read_description(source: Path | InputFile) -> dict[str, Any]:
    """What `Package.description` says. Raises DamagedPackage or NoSuchFile."""
    with opened(source) as package:
        return package.description()


def members(source: Path | InputFile, *, only_info: bool = False) -> Iterator[Member]:
    """The files and links of a package, in its order; with `only_info`, those that describe it.

    A member's contents must be read before the next one is asked for. Raises DamagedPackage or NoSuchFile.
    """
    with opened(source) as package:
        yield from (each for each in package.members(only_info=only_info) if each.file or each.target)


def _lists_paths(table: dict[str, Any]) -> bool:
    rows = table.get("paths", [])
    return isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get("_path"), str) for row in rows)


def _kind(info: tarfile.TarInfo) -> str:
    kinds = {
        "file": info.isreg(),
        "folder": info.isdir(),
        "link": info.issym(),
        "hard link": info.islnk(),
        "pipe": info.isfifo(),
        "device": info.isdev(),
    }
    return next((kind for kind, is_it in kinds.items() if is_it), "member of an unknown kind")


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Turns whatever a damaged file makes the readers raise into one failure."""
    try:
        yield
    except archive.OtherName as error:
        raise _misnamed(what, str(error)) from error
    # RuntimeError is also recursion that is too deep, and what zipfile does not know.
    except (
        *(zipfile.BadZipFile, tarfile.TarError, struct.error, EOFError, LookupError),
        *(ValueError, ArithmeticError, OSError, RuntimeError),
    ) as error:
        reason = shown(str(error))
        raise DamagedPackage(f"{what} is truncated, damaged or no conda package ({reason}): get it again") from error
    except Exception as error:
        if type(error).__module__.startswith("zstandard"):
            raise DamagedPackage(f"{what} is damaged ({error}): get it again") from error
        raise
