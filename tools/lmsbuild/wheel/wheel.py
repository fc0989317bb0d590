"""A wheel file: its name, its members, and whether they are what its RECORD says."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from packaging.tags import Tag as InterpreterTag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from lmsbuild.errors import DamagedWheel, NoSuchFile, TamperedWheel, UnsafeMember
from lmsbuild.wheel.archive import compressed_chunks

if TYPE_CHECKING:
    from typing_extensions import Self

_UNSIGNED = (".jws", ".p7s")  # signatures of RECORD, which cannot be listed in it with a hash
_SIDE_BY_SIDE = 2  # threads that unpack; hashing and unpacking leave the interpreter's lock


@dataclass(frozen=True)
class WheelName:
    """What a wheel's file name says."""

    package: str
    version: Version
    tags: frozenset[InterpreterTag]

    @property
    def is_patched(self) -> bool:
        """Whether the local version label is one that the graft gives."""
        return re.search(r"(^|\.)lms\d+$", self.version.local or "") is not None

    @property
    def platforms(self) -> list[str]:
        return sorted({tag.platform for tag in self.tags})


class _Count:
    """A sum that several threads add to; `show` gets it after each addition."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._sum = 0

    def add(self, amount: int) -> None:
        with self._lock:
            self._sum += amount
            self._show(self._sum)


def parse_name(path: Path) -> WheelName:
    """Raises DamagedWheel when the file's name is not a wheel's."""
    try:
        package, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise DamagedWheel(
            f"{path.name} is not the name of a wheel: keep the name under which it was published"
        ) from error
    return WheelName(package, version, tags)


def record_hash(data: bytes) -> str:
    """The hash of a member as RECORD writes it."""
    return _encode_digest(hashlib.sha256(data).digest())


def record_text(rows: Iterable[tuple[str, str, str]]) -> bytes:
    """A RECORD file of (name, hash, size) rows."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


class WheelFile:
    """An open wheel. Use as a context manager. `verify` may use threads; calls are for one thread at a time."""

    def __init__(self, path: Path, stream: BinaryIO | None = None) -> None:
        """Raises NoSuchFile or DamagedWheel, and UnsafeMember for names that lead out of the wheel.

        With `stream` the wheel is read from there, `path` is only its name, and `verify` cannot be called.
        """
        self.path = path
        self.name = parse_name(path)
        try:
            self._zip = zipfile.ZipFile(stream or path)
        except FileNotFoundError as error:
            raise NoSuchFile(f"there is no file {path}") from error
        except OSError as error:
            raise NoSuchFile(f"cannot read {path}: {error.strerror}") from error
        except zipfile.BadZipFile as error:
            raise DamagedWheel(f"{path.name} is truncated or no wheel at all ({error}): download it again") from error
        try:
            self.members = {info.filename: info for info in self._zip.infolist()}
            self._check_names()
            self.dist_info = self._find_dist_info()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        """The contents of a member. Raises DamagedWheel when it is not there or not whole."""
        try:
            return self._zip.read(name)
        except KeyError as error:
            raise DamagedWheel(f"{self.path.name} has no {name}: download it again") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise DamagedWheel(f"{self.path.name} is damaged at {name} ({error}): download it again") from error

    def record(self) -> dict[str, tuple[str, str]]:
        """RECORD: hash and size by name."""
        rows = list(csv.reader(io.StringIO(self.read(f"{self.dist_info}/RECORD").decode())))
        if any(len(row) != 3 for row in rows):
            raise TamperedWheel(f"{self.path.name} has a RECORD that cannot be read: download it again")
        return {name: (digest, size) for name, digest, size in rows}

    def verify(
        self, unpack: Callable[[str], Path | None], on_bytes: Callable[[int], None], vouched: bool = False
    ) -> dict[str, tuple[str, str]]:
        """Checks every member against RECORD.

        `unpack` names the file that a member is unpacked to on the way, or None; it is called on the calling thread.
        `on_bytes` gets the number of bytes checked so far, on any thread. With `vouched` the hash of the whole file is known
        to be right; hash and size of the members of which RECORD says something else are then returned, by name. Raises
        TamperedWheel or DamagedWheel.
        """
        record = self.record()
        missing = sorted(set(record) - set(self.members))
        if missing:
            raise DamagedWheel(f"{self.path.name} lacks {missing[0]}, which its RECORD lists: download it again")
        record_name = f"{self.dist_info}/RECORD"
        exempt = {record_name, *(record_name + suffix for suffix in _UNSIGNED)}
        jobs = []
        for name, info in self.members.items():
            if info.is_dir() or name in exempt:
                continue
            if name not in record or not record[name][0]:
                raise TamperedWheel(f"{name} is in {self.path.name}, but not in its RECORD: do not use this file")
            target = unpack(name)
            if target is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
            jobs.append((info, record[name], target))
        jobs.sort(key=lambda job: -job[0].file_size)  # the largest first, so that no thread ends long after the others
        count = _Count(on_bytes)
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            futures = [pool.submit(self._verify_member, *job, count, vouched) for job in jobs]
            try:
                different = {name: found for future in as_completed(futures) for name, found in future.result().items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return different

    def total_size(self) -> int:
        """Bytes of all members, unpacked."""
        return sum(info.file_size for info in self.members.values())

    def _verify_member(
        self, info: zipfile.ZipInfo, expected: tuple[str, str], target: Path | None, count: _Count, vouched: bool
    ) -> dict[str, tuple[str, str]]:
        digest = hashlib.sha256()
        size = 0
        sink = None if target is None else target.open("wb")
        try:
            with self.path.open("rb") as file:
                for chunk in self._unpacked(file, info):
                    digest.update(chunk)
                    size += len(chunk)
                    count.add(len(chunk))
                    if sink:
                        sink.write(chunk)
        finally:
            if sink:
                sink.close()
        found = (_encode_digest(digest.digest()), str(size))
        if found == expected:
            return {}
        if not vouched:
            raise TamperedWheel(
                f"{info.filename} in {self.path.name} is not what the wheel's RECORD says (hash or size differs): "
                "download the wheel again, and do not use this file"
            )
        return {info.filename: found}

    def _unpacked(self, file: io.BufferedReader, info: zipfile.ZipInfo) -> Iterable[bytes]:
        if info.compress_type == zipfile.ZIP_STORED:
            yield from compressed_chunks(file, info)
            return
        if info.compress_type != zipfile.ZIP_DEFLATED:
            raise DamagedWheel(f"{info.filename} in {self.path.name} is compressed in a way that wheels do not use")
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for chunk in compressed_chunks(file, info):
                yield unpacker.decompress(chunk)
            yield unpacker.flush()
        except zlib.error as error:
            raise DamagedWheel(f"{self.path.name} is damaged at {info.filename}: download it again") from error
        if not unpacker.eof or unpacker.unused_data:
            raise DamagedWheel(f"{self.path.name} is damaged at {info.filename}: download it again")

    def _check_names(self) -> None:
        if len(self.members) != len(self._zip.infolist()):
            raise TamperedWheel(f"{self.path.name} holds the same name twice: do not use this file")
        for name, info in self.members.items():
            if not _stays_inside(name):
                raise UnsafeMember(f"{self.path.name} has a member {name!r} outside the wheel: do not use this file")
            if stat.S_ISLNK(info.external_attr >> 16):
                target = self.read(name).decode(errors="replace")
                if target.startswith("/") or not _stays_inside(os.path.join(os.path.dirname(name), target)):
                    raise UnsafeMember(
                        f"{self.path.name} has a link {name!r} to {target!r}, outside the wheel: do not use this file"
                    )

    def _find_dist_info(self) -> str:
        found = {name.split("/")[0] for name in self.members if name.split("/")[0].endswith(".dist-info")}
        if len(found) != 1:
            raise DamagedWheel(f"{self.path.name} has {len(found)} dist-info folders, not one: it is no wheel")
        return found.pop()


def _stays_inside(name: str) -> bool:
    if not name or name.startswith("/") or "\\" in name or "\0" in name:
        return False
    depth = 0
    for part in PurePosixPath(name).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "..":
            return False
    return True


def _encode_digest(digest: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def file_sha256(path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
    """The sha256 of a file, in hexadecimal; `on_bytes` gets how many bytes are read."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return digest.hexdigest()
