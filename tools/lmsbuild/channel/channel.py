"""A conda channel in a folder: packages by platform, and the index that clients read.

A client sees a valid channel at every moment, however publishing ends: packages are there before the index names them, and
each file is written aside and renamed. No package leaves a channel, since users may have locked it. `lmsbuild-index.json` in
each folder also remembers what the index says of a package beside its record.

py-rattler's index_fs (0.28 was tried) does not write the index: it stamps each record with the time, so that the same
packages give other bytes, writes no run_exports.json, takes no lock, drops a package whose file is gone, and does not see
that a file has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmsbuild import report
from lmsbuild.channel import attestations, index, inspection
from lmsbuild.conda import package_file, tools
from lmsbuild.conda.package_file import INFO, Package
from lmsbuild.errors import BadChannel, DamagedPackage, NoSuchFile, PackageConflict, WrongSubdir
from lmsbuild.published import folder as published
from lmsbuild.published import strict_json
from lmsbuild.published.folder import SEEN, Published, publishing, read_json, read_seen, stamp, write
from lmsbuild.published.regular_file import read_file

NOARCH = "noarch"
_COMMAND = "lmsbuild channel publish"
_REPAIR = "lmsbuild channel repair"
_SUBDIR = re.compile(r"noarch|linux-[a-z0-9_]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ANEW = f"`{_COMMAND}` writes it anew"
_CHUNK, _PACKED_CHUNK = 1 << 20, 1 << 12  # bytes; the latter may unpack to a hundred MiB
_LEVEL = 12  # of the index's compression


@dataclass(frozen=True)
class Digest:
    """What a file holds, as the index says it."""

    size: int  # bytes
    md5: str
    sha256: str


@dataclass
class Folder:
    """One platform's part of the channel, as it is to be."""

    path: Path
    records: dict[str, dict[str, Any]]  # what the index says of each package, by file name
    seen: dict[str, dict[str, Any]]  # the facts of index.py, and `stamp`: size and date of the file when it was hashed
    arriving: dict[str, Path] = field(default_factory=dict)  # complete copies under other names, by file name
    attested: dict[str, bytes] = field(default_factory=dict)  # attestations that are new, by the package's file name

    @property
    def subdir(self) -> str:
        return self.path.name


def publish(channel: Path, packages: Iterable[Path]) -> Published:
    """Adds packages to the channel in the folder `channel`, which is made when it is missing, and writes its index.

    Packages that were put into the folders by other means are indexed too, and so are attestations beside a package, here
    or where it is given. Either all are added or none is. Raises
    DamagedPackage, WrongSubdir, PackageConflict, BadAttestation, BadChannel, NoSuchFile or OutputNotWritable.
    """
    packages = list(packages)
    if (channel / "repodata.json").exists():
        raise BadChannel(f"{channel} is the folder for one platform of a channel: give the one above")
    if not packages and not _subdirs(channel):
        raise NoSuchFile(
            f"there is no channel in {channel}: name packages that go there, `{_COMMAND} {channel} PACKAGE`"
        )
    with publishing(channel, "channel"):
        folders = {path.name: _read_folder(path) for path in _subdirs(channel)}
        before = {name: set(folder.records) for name, folder in folders.items()}
        folders.setdefault(NOARCH, _new_folder(channel / NOARCH))
        hashed = 0
        try:
            for folder in list(folders.values()):
                hashed += _index_found(folder)
            for package in packages:
                hashed += _take(package, channel, folders)
            write_index(channel, folders.values())
        finally:
            for folder in folders.values():
                for copy in folder.arriving.values():
                    copy.unlink(missing_ok=True)
                if not any(folder.path.iterdir()):  # made for what is refused
                    folder.path.rmdir()
    added = tuple(
        f"{name}/{file}"
        for name, folder in folders.items()
        for file in sorted(set(folder.records) - before.get(name, set()))
    )
    return Published(added, sum(map(len, before.values())), hashed)


def write_index(channel: Path, folders: Iterable[Folder]) -> None:
    """Moves what arrives into its place, and writes the index. Raises BadChannel before that when no client could read it."""
    # Noarch's index is there before those of packages that require what it names.
    ordered = sorted(folders, key=lambda folder: (folder.subdir != NOARCH, folder.subdir))
    parts = [index.Part(folder.subdir, folder.records, folder.seen) for folder in ordered]
    data = index.as_bytes(index.channeldata(parts))
    tables = [index.tables(part) for part in parts]
    for folder in ordered:
        _settle(folder)
    write(channel / index.CHANNELDATA, data)
    for folder, table in zip(ordered, tables, strict=True):
        _write_tables(folder, table)


def read_index(folder: Path) -> dict[str, dict[str, Any]]:
    """What repodata.json in the folder says of each package, by file name. Raises BadChannel when it cannot be read."""
    found = read_rows(folder)
    if wrong := [name for name, row in found.items() if not is_record(name, row)]:
        raise BadChannel(
            f"{folder / 'repodata.json'} is no index: put back the one that was published, or let `{_REPAIR}` write it anew; "
            f"what it says of {package_file.shown(wrong[0])} is of no package"
        )
    return found


def read_rows(folder: Path) -> dict[str, Any]:
    """What repodata.json in the folder says, by file name, whatever it is. Raises BadChannel when it cannot be read."""
    path = folder / "repodata.json"
    found = dict[str, Any]()
    try:
        table = read_table(path)
    except BadChannel as error:
        raise BadChannel(f"{error}, or let `{_REPAIR}` write it anew") from error.__cause__
    for key in ("packages", "packages.conda"):
        rows = table.get(key, {})
        if not isinstance(rows, dict):
            raise BadChannel(
                f"{path} is no index: put back the one that was published, or let `{_REPAIR}` write it anew; its {key} are no table"
            )
        found |= rows
    return found


def is_record(name: str, row: Any) -> bool:
    """Whether this may be what an index says of the package in that file."""
    try:
        package_file.identity(name)
    except DamagedPackage:
        return False
    return (
        isinstance(row, dict)
        and isinstance(row.get("size"), int)
        and _is_sha256(row.get("sha256"))
        and _is_sha256(row.get(attestations.KEY, row["sha256"]))
    )


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and bool(_SHA256.fullmatch(value))


def read_table(path: Path) -> dict[str, Any]:
    """One of the files of an index. Raises BadChannel when it cannot be read."""
    return read_json(path, _COMMAND)


def subdirs(channel: Path) -> list[Path]:
    """The folders of a channel, one for each platform. Raises BadChannel when there is none."""
    found = _subdirs(channel)
    if not found:
        raise BadChannel(f"{channel} is no channel: `lmsbuild channel publish {channel} PACKAGE` makes one")
    return found


def digest(package: Package, copy: Path | None = None) -> Digest:
    """Reads a package once: hashes it, and writes it to `copy` on the way. Raises DamagedPackage when it cannot be read."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    source = package.file
    source.seek(0)
    sink = copy.open("xb") if copy else None
    try:
        with report.progress(package.name, package.size, is_bytes=True) as show:
            while chunk := _read(package):
                md5.update(chunk)
                sha256.update(chunk)
                size += len(chunk)
                show(size)
                if sink:
                    sink.write(chunk)
        if sink:
            sink.flush()
            os.fsync(sink.fileno())
    finally:
        if sink:
            sink.close()
    return Digest(size, md5.hexdigest(), sha256.hexdigest())


def _read(package: Package) -> bytes:
    try:
        return package.file.read(_CHUNK)
    except OSError as error:
        raise DamagedPackage(f"{package.name} cannot be read: {error.strerror}") from error


def unpacked_index(data: bytes, largest: int = strict_json.LARGEST) -> bytes:
    """What a .zst file holds, at most `largest` bytes. Raises BadChannel when it is damaged or holds more."""
    zstandard = tools.zstandard()
    try:
        stream = zstandard.ZstdDecompressor().decompressobj()
        unpacked = bytearray()
        for start in range(0, len(data), _PACKED_CHUNK):
            unpacked += stream.decompress(data[start : start + _PACKED_CHUNK])
            if len(unpacked) > largest:
                raise BadChannel(f"a .zst file holds more than {largest} bytes: {_ANEW}")
    except zstandard.ZstdError as error:
        raise BadChannel(f"a .zst file is damaged ({error}): {_ANEW}") from error
    if not stream.eof or stream.unused_data:
        raise BadChannel(f"a .zst file is cut off, or has something behind it: {_ANEW}")
    return bytes(unpacked)


def _subdirs(channel: Path) -> list[Path]:
    folders = [path for path in channel.iterdir() if _SUBDIR.fullmatch(path.name)] if channel.is_dir() else []
    for path in folders:
        if path.is_symlink():
            raise BadChannel(f"{path} is a link, and packages are written there: put the folder itself in its place")
    return sorted(path for path in folders if path.is_dir())


def _new_folder(path: Path) -> Folder:
    path.mkdir(parents=True, exist_ok=True)
    return Folder(path, {}, {})


def _read_folder(path: Path) -> Folder:
    published.remove_leftovers(path)
    if not (path / "repodata.json").exists():
        return _new_folder(path)
    return Folder(path, read_index(path), read_facts(path))


def read_facts(path: Path) -> dict[str, dict[str, Any]]:
    """What is remembered of the packages in a folder, by file name."""
    return {name: row for name, row in read_seen(path / SEEN, _COMMAND).items() if index.are_facts(row)}


def _index_found(folder: Folder) -> int:
    """Indexes what lies in the folder and is new; returns how many files were read. Nothing that was known may differ."""
    files = [path for path in folder.path.iterdir() if path.name.endswith(package_file.SUFFIXES)]
    for path in sorted(files):
        if path.name not in folder.records and not path.is_file():
            name = package_file.shown(path.name)
            raise BadChannel(f"{folder.subdir}/{name} is no file: remove it, or put the package there")
    there = {path.name: path.stat() for path in files if path.is_file()}
    gone = sorted(set(folder.records) - set(there))
    if gone:
        raise BadChannel(
            f"{folder.subdir}/{gone[0]} is in the index, but its file is gone: put it back, since users may have locked it; "
            f"if it is lost, `{_REPAIR}` takes it out of the index"
        )
    hashed = 0
    for name, status in sorted(there.items()):
        known, seen = folder.records.get(name), folder.seen.get(name, {})
        if known and seen.get("stamp") == stamp(status) and known["size"] == status.st_size:
            continue
        with package_file.opened(folder.path / name) as package:
            _index_one(folder, package)
        hashed += 1
    for name in there:
        _attest(folder, name, attestations.beside(folder.path / name))
    return hashed


def _index_one(folder: Folder, package: Package) -> None:
    """Indexes a package that lies in the folder, or compares it with what the index says of it."""
    name, known = package.name, folder.records.get(package.name)
    package_file.identity(name)  # before it is read whole
    status = stamp(os.fstat(package.file.fileno()))
    found = digest(package)
    if known is None:
        check_twins(folder, name)
        add(folder, package, found)
    elif known["sha256"] != found.sha256:
        raise _conflict(name, folder, "the file in the channel is not the one that was published")
    elif name not in folder.seen:
        folder.seen[name] = index.facts(package.description())
    if stamp(os.fstat(package.file.fileno())) != status:
        raise BadChannel(f"{folder.subdir}/{name} changes while it is read: publish again when it is complete")
    folder.seen[name]["stamp"] = status


def _take(path: Path, channel: Path, folders: dict[str, Folder]) -> int:
    """Copies a package beside its place and indexes the copy; returns how many files were read."""
    with package_file.opened(path) as package:
        subdir = _subdir(package)
        lies_in = path.resolve().parent.name
        if lies_in != subdir and (lies_in == NOARCH or lies_in.startswith(("linux-", "osx-", "win-"))):
            raise WrongSubdir(f"{path.name} is for {subdir}, but lies in {lies_in}: one of the two is wrong")
        folder = folders.get(subdir) or folders.setdefault(subdir, _new_folder(channel / subdir))
        if path.resolve() == (folder.path / path.name).resolve():
            return 0  # indexed where it lies
        known = folder.records.get(path.name)
        if known:
            if known["sha256"] != digest(package).sha256:
                raise _conflict(path.name, folder, "the one given has other contents")
        else:
            check_twins(folder, path.name)
            copy = published.aside(folder.path / path.name)
            copy.unlink(missing_ok=True)
            folder.arriving[path.name] = copy
            found = digest(package, copy)
            with package_file.opened(copy, path.name) as own:
                add(folder, own, found)
    _attest(folder, path.name, attestations.beside(path))
    return 1


def _subdir(package: Package) -> str:
    """The platform that a package says it is for. Raises DamagedPackage or WrongSubdir."""
    package_file.identity(package.name)
    for member in package.members(only_info=True):
        if member.name == f"{INFO}index.json":
            subdir = (package.table(member) or {}).get("subdir")
            if not isinstance(subdir, str) or not _SUBDIR.fullmatch(subdir):
                raise WrongSubdir(f"{package.name} is for {subdir!r}, and this channel has packages for Linux only")
            return subdir
    raise DamagedPackage(f"{package.name} has no {INFO}index.json: it is no conda package")


def add(folder: Folder, package: Package, found: Digest) -> None:
    """Adds a package to what the index says. Raises DamagedPackage or WrongSubdir."""
    name = package.name
    described = inspection.sound(package)
    record = index.record(name, described["index"])
    if record["subdir"] != folder.subdir:
        raise WrongSubdir(f"{name} is for {record['subdir']}, but lies in {folder.subdir}: move it there")
    folder.records[name] = {**record, **asdict(found)}
    folder.seen[name] = index.facts(described)


def _attest(folder: Folder, name: str, given: Path) -> None:
    """Takes up the attestations of a package in the file `given`, if there is one."""
    record = folder.records[name]
    if given.is_file() and hashlib.sha256(read_file(given, attestations.LARGEST)).hexdigest() != record.get(
        attestations.KEY
    ):
        data = attestations.joined(folder.path / name, record, given)
        folder.attested[name] = data
        record[attestations.KEY] = hashlib.sha256(data).hexdigest()


def check_twins(folder: Folder, name: str) -> None:
    """Raises PackageConflict when the index has the package in another format."""
    stem = str(package_file.identity(name))
    for twin in (f"{stem}{suffix}" for suffix in package_file.SUFFIXES):
        if twin != name and twin in folder.records:
            raise _conflict(name, folder, f"it is there as {twin}")


def _conflict(name: str, folder: Folder, what: str) -> PackageConflict:
    return PackageConflict(
        f"{folder.subdir} has {name} already, and {what}: users may have locked it, so build the new one with another "
        "build number"
    )


def _settle(folder: Folder) -> None:
    """Moves what arrives into its place."""
    for name, copy in list(folder.arriving.items()):
        target = folder.path / name
        copy.chmod(0o644)
        os.replace(copy, target)
        del folder.arriving[name]
        folder.seen[name]["stamp"] = stamp(target.stat())
    for name, data in folder.attested.items():
        write(attestations.kept(folder.path / name, folder.records[name][attestations.KEY]), data)
        write(attestations.beside(folder.path / name), data)


def _write_tables(folder: Folder, tables: dict[str, dict[str, Any]]) -> None:
    for name in index.FILES:
        data = index.as_bytes(tables[name])
        write(folder.path / f"{name}.zst", tools.zstandard().ZstdCompressor(level=_LEVEL).compress(data))
        write(folder.path / name, data)
    write(folder.path / SEEN, json.dumps(folder.seen, sort_keys=True).encode())
