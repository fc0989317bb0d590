"""A wheel file: its members, and whether they are what its RECORD says."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import struct
import threading
import zipfile
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lmsbuild.ending import signals
from lmsbuild.errors import DamagedWheel, TamperedWheel, UnsafeMember
from lmsbuild.wheel import layout, member_names
from lmsbuild.wheel.archive import unpacked_chunks
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.name import parse_name

if TYPE_CHECKING:
    from typing_extensions import Self

_UNSIGNED = (".jws", ".p7s")  # signatures of RECORD, which cannot be listed in it with a hash
_SIDE_BY_SIDE = 2  # threads that unpack; hashing and unpacking leave the interpreter's lock


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

    def __init__(self, source: Path | InputFile, stream: BinaryIO | None = None) -> None:
        """`source` may be a file that is open already; closing the wheel leaves that open.

        With `stream` the wheel is read from there, `source` is only its name, `verify` cannot be called, and what is known once
        the whole file is read is not checked. Raises NoSuchFile, DamagedWheel or TamperedWheel, and UnsafeMember for names
        that lead out of the wheel.
        """
        self.path = source.path if isinstance(source, InputFile) else source
        self.name = parse_name(self.path)
        with ExitStack() as stack:
            self._file: InputFile | None = None
            if stream is None:
                self._file = source if isinstance(source, InputFile) else stack.enter_context(InputFile(source))
                end = layout.directory(self._file)
                stream = stack.enter_context(self._file.stream())
            self._stream = stream
            entries = self._entries()
            self.members = {info.filename: info for info in entries}
            member_names.check(entries, self.path.name)
            for info in entries:
                layout.check_entry(info, self.path.name)
            self.dist_info = self._find_dist_info()
            if self._file:
                layout.check_members(self._file, entries, end)
                self._check_metadata()
            self._closing = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def stream(self) -> BinaryIO:
        """The archive, with a position of its own."""
        assert self._file is not None, "a stream that was given has one position"
        return self._file.stream()

    def read(self, name: str) -> bytes:
        """The contents of a member. Raises DamagedWheel when it is not there or not whole."""
        if name not in self.members:
            raise DamagedWheel(f"{self.path.name} has no {name}: download it again")
        return b"".join(unpacked_chunks(self._stream, self.members[name]))

    def record(self) -> dict[str, tuple[str, str]]:
        """RECORD: hash and size by name. Raises TamperedWheel."""
        unreadable = TamperedWheel(f"{self.path.name} has a RECORD that cannot be read: download it again")
        try:
            rows = list(csv.reader(io.StringIO(self.read(f"{self.dist_info}/RECORD").decode())))
        except (UnicodeDecodeError, csv.Error) as error:
            raise unreadable from error
        found: dict[str, tuple[str, str]] = {}
        for row in rows:
            if len(row) != 3:
                raise unreadable
            name, digest, size = row
            if name in found or name.startswith("/"):
                what = "twice" if name in found else "outside the wheel"
                raise TamperedWheel(f"{self.path.name} has a RECORD that lists {name} {what}: do not use this file")
            found[name] = digest, size
        return found

    def listed(self) -> dict[str, tuple[str, str]]:
        """Hash and size by name, of each member that has to have them. Raises TamperedWheel or DamagedWheel where RECORD and the
        archive do not have the same members.
        """
        record = self.record()
        missing = sorted(set(record) - set(self.members))
        if missing:
            raise DamagedWheel(f"{self.path.name} lacks {missing[0]}, which its RECORD lists: download it again")
        record_name = f"{self.dist_info}/RECORD"
        exempt = {record_name, *(record_name + suffix for suffix in _UNSIGNED)}
        found = {}
        for name, info in self.members.items():
            if info.is_dir() or name in exempt:
                continue
            if name not in record or not record[name][0]:
                raise TamperedWheel(f"{name} is in {self.path.name}, but not in its RECORD: do not use this file")
            found[name] = record[name]
        return found

    def verify(
        self,
        unpack: Callable[[str], Path | None],
        on_bytes: Callable[[int], None],
        vouched: bool = False,
        known: Collection[str] = (),
    ) -> dict[str, tuple[str, str]]:
        """Checks every member against RECORD, but for the contents of those that are `known`.

        `unpack` names the file that a member is unpacked to on the way, or None; it is called on the calling thread.
        `on_bytes` gets the number of bytes checked so far, on any thread. With `vouched` the hash of the whole file is known
        to be right; hash and size of the members of which RECORD says something else are then returned, by name. Raises
        TamperedWheel or DamagedWheel.
        """
        jobs = []
        for name, expected in self.listed().items():
            if name in known:
                continue
            target = unpack(name)
            if target is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
            jobs.append((self.members[name], expected, target))
        jobs.sort(key=lambda job: -job[0].file_size)  # the largest first, so that no thread ends long after the others
        count = _Count(on_bytes)
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            futures = [pool.submit(self._verify_member, *job, count, vouched) for job in jobs]
            try:
                different = {
                    name: found for future in signals.completed(futures) for name, found in future.result().items()
                }
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
            with self.stream() as file:
                for chunk in unpacked_chunks(file, info):
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

    def _entries(self) -> list[zipfile.ZipInfo]:
        """The archive's directory."""
        try:
            with zipfile.ZipFile(self._stream) as archive:
                return archive.infolist()
        except UnicodeDecodeError as error:
            raise UnsafeMember(
                f"{self.path.name} has a member whose name is not plain UTF-8: do not use this file"
            ) from error
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError, struct.error) as error:
            raise DamagedWheel(
                f"{self.path.name} is truncated or no wheel at all ({error}): download it again"
            ) from error

    def _find_dist_info(self) -> str:
        """The folder that describes the wheel. Raises DamagedWheel when there is another than the one of its name."""
        folders = sorted({name.partition("/")[0] for name in self.members if "/" in name})
        own = [folder for folder in folders if folder.endswith(".dist-info")]
        if len(own) != 1:
            raise DamagedWheel(f"{self.path.name} has {len(own)} dist-info folders, not one: it is no wheel")
        for folder in folders:
            stem, kind = os.path.splitext(folder)
            package, _, version = stem.partition("-")
            # What a patched wheel has for other places than the rest lies where the base wheel has it, whose label is another.
            if kind in (".dist-info", ".data") and not self._is_named(package, version, public=kind == ".data"):
                raise DamagedWheel(
                    f"{self.path.name} has a folder {folder}, which is another wheel's: keep the name under which it was "
                    "published"
                )
        return own[0]

    def _is_named(self, package: str, stated: str, *, public: bool = False) -> bool:
        """Whether these are the wheel's package and version; if `public`, but for a local label."""
        try:
            version = Version(stated)
        except InvalidVersion:
            return False
        is_version = version.public == self.name.version.public if public else version == self.name.version
        return is_version and canonicalize_name(package) == self.name.package

    def _check_metadata(self) -> None:
        """Raises DamagedWheel when the wheel does not say of itself what its name says."""
        stated = self._statements("METADATA")
        names, versions = stated.get_all("Name", []), stated.get_all("Version", [])
        if len(names) != 1 or len(versions) != 1 or not self._is_named(names[0], versions[0]):
            raise DamagedWheel(
                f"{self.path.name} says that it is {' '.join([*names, *versions])}: keep the name under which it was published"
            )
        for tag in self._statements("WHEEL").get_all("Tag", []):
            if len(tag.split("-")) != 3:
                raise DamagedWheel(f"{self.path.name} states the tag {tag!r}, which is none: download it again")

    def check_installable(self) -> None:
        """Raises DamagedWheel when installers refuse what it states, or its name promises another interpreter or ABI than it has."""
        stated, metadata = self._statements("WHEEL"), self._statements("METADATA")
        for what, version, known in (
            ("Wheel-Version", stated["Wheel-Version"], "1"),
            ("Metadata-Version", metadata["Metadata-Version"], "12"),
        ):
            if not re.fullmatch(rf"[{known}]\.\d+", version or ""):
                raise DamagedWheel(
                    f"{self.path.name} states the {what} {version!r}, which no installer knows: build it again"
                )
        try:
            SpecifierSet(metadata["Requires-Python"] or "")
            built_for = {(tag.interpreter, tag.abi) for text in stated.get_all("Tag", []) for tag in parse_tag(text)}
        except (InvalidSpecifier, ValueError) as error:
            raise DamagedWheel(
                f"{self.path.name} states what no installer can read ({error}): build it again"
            ) from error
        if lacking := {(tag.interpreter, tag.abi) for tag in self.name.tags} - built_for:
            named = ", ".join(sorted("-".join(pair) for pair in lacking))
            raise DamagedWheel(
                f"{self.path.name} is not for {named}, as its WHEEL says: keep the name under which it was published"
            )

    def _statements(self, name: str) -> Message:
        """What a file of the dist-info folder states, line by line."""
        try:
            return HeaderParser().parsestr(self.read(f"{self.dist_info}/{name}").decode())
        except UnicodeDecodeError as error:
            raise DamagedWheel(f"{self.path.name} has a {name} that is not UTF-8: download it again") from error


def _encode_digest(digest: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def file_sha256(path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
    """The sha256 of a file, in hexadecimal; `on_bytes` gets how many bytes are read. Raises NoSuchFile."""
    with InputFile(path) as file:
        return file.sha256(on_bytes)
