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
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmsbuild import report
from lmsbuild.channel import attestations, index
from lmsbuild.conda import package_file, tools
from lmsbuild.errors import BadChannel, DamagedPackage, NoSuchFile, PackageConflict, WrongSubdir
from lmsbuild.published.folder import ASIDE, SEEN, Published, publishing, read_json, read_seen, stamp, write

NOARCH = "noarch"
_COMMAND = "lmsbuild channel publish"
_CHUNK = 1 << 20  # bytes
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
            # Before the index that names them, and noarch's index before those of packages that require what it names.
            ordered = sorted(folders.values(), key=lambda folder: (folder.subdir != NOARCH, folder.subdir))
            for folder in ordered:
                _settle(folder)
            parts = [index.Part(folder.subdir, folder.records, folder.seen) for folder in ordered]
            write(channel / index.CHANNELDATA, index.as_bytes(index.channeldata(parts)))
            for folder, part in zip(ordered, parts, strict=True):
                _write_index(folder, part)
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


def read_index(folder: Path) -> dict[str, dict[str, Any]]:
    """What repodata.json in the folder says of each package, by file name. Raises BadChannel when it cannot be read."""
    path = folder / "repodata.json"
    table, found = read_table(path), dict[str, dict[str, Any]]()
    for key in ("packages", "packages.conda"):
        rows = table.get(key, {})
        if not isinstance(rows, dict) or not all(map(_is_record, rows.values())):
            raise BadChannel(f"{path} is no index: put back the one that was published")
        found |= rows
    return found


def _is_record(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("size"), int) and isinstance(row.get("sha256"), str)


def read_table(path: Path) -> dict[str, Any]:
    """One of the files of an index. Raises BadChannel when it cannot be read."""
    return read_json(path, _COMMAND)


def subdirs(channel: Path) -> list[Path]:
    """The folders of a channel, one for each platform. Raises BadChannel when there is none."""
    found = _subdirs(channel)
    if not found:
        raise BadChannel(f"{channel} is no channel: `lmsbuild channel publish {channel} PACKAGE` makes one")
    return found


def digest(path: Path, copy: Path | None = None) -> Digest:
    """Reads a file once: hashes it, and writes it to `copy` on the way. Raises DamagedPackage when it cannot be read."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    try:
        opened = path.open("rb")
    except OSError as error:
        raise DamagedPackage(f"{path} cannot be read: {error.strerror}") from error
    with opened as source, report.progress(path.name, path.stat().st_size, is_bytes=True) as show:
        sink = copy.open("wb") if copy else None
        try:
            while chunk := source.read(_CHUNK):
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


def unpacked_index(data: bytes) -> bytes:
    """What a .zst file holds. Raises BadChannel when it is damaged."""
    zstandard = tools.zstandard()
    try:
        unpacked: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError as error:
        raise BadChannel(f"a .zst file is damaged ({error}): `lmsbuild channel publish` writes it anew") from error
    return unpacked


def _subdirs(channel: Path) -> list[Path]:
    folders = (path for path in channel.iterdir()) if channel.is_dir() else iter(())
    return sorted(path for path in folders if path.is_dir() and (path.name == NOARCH or path.name.startswith("linux-")))


def _new_folder(path: Path) -> Folder:
    path.mkdir(parents=True, exist_ok=True)
    return Folder(path, {}, {})


def _read_folder(path: Path) -> Folder:
    for left in path.glob(f"{ASIDE}*"):
        left.unlink()
    if not (path / "repodata.json").exists():
        return _new_folder(path)
    seen = read_seen(path / SEEN, _COMMAND)
    return Folder(path, read_index(path), {name: row for name, row in seen.items() if index.are_facts(row)})


def _index_found(folder: Folder) -> int:
    """Indexes what lies in the folder and is new; returns how many files were read. Nothing that was known may differ."""
    files = [path for path in folder.path.iterdir() if path.name.endswith(package_file.SUFFIXES)]
    for path in sorted(files):
        if path.name not in folder.records and not path.is_file():
            raise BadChannel(f"{folder.subdir}/{path.name} is no file: remove it, or put the package there")
    there = {path.name: path.stat() for path in files if path.is_file()}
    gone = sorted(set(folder.records) - set(there))
    if gone:
        raise BadChannel(
            f"{folder.subdir}/{gone[0]} is in the index, but its file is gone: put it back, since users may have locked it"
        )
    hashed = 0
    for name, status in sorted(there.items()):
        known, seen = folder.records.get(name), folder.seen.get(name, {})
        found_stamp = stamp(status)
        if known and seen.get("stamp") == found_stamp and known["size"] == status.st_size:
            continue
        found = digest(folder.path / name)
        hashed += 1
        if known is None:
            _add(folder, name, folder.path / name, found)
        elif known["sha256"] != found.sha256:
            raise _conflict(name, folder, "the file in the channel is not the one that was published")
        elif not seen:
            folder.seen[name] = index.facts(package_file.read_description(folder.path / name))
        folder.seen[name]["stamp"] = found_stamp
    for name in there:
        _attest(folder, name, attestations.beside(folder.path / name))
    return hashed


def _take(package: Path, channel: Path, folders: dict[str, Folder]) -> int:
    """Copies a package beside its place and indexes it; returns how many files were read."""
    subdir = package_file.read_description(package)["index"].get("subdir")
    if not isinstance(subdir, str) or not (subdir == NOARCH or subdir.startswith("linux-")) or "/" in subdir:
        raise WrongSubdir(f"{package.name} is for {subdir!r}, and this channel has packages for Linux only")
    lies_in = package.resolve().parent.name
    if lies_in != subdir and (lies_in == NOARCH or lies_in.startswith(("linux-", "osx-", "win-"))):
        raise WrongSubdir(f"{package.name} is for {subdir}, but lies in {lies_in}: one of the two is wrong")
    folder = folders.get(subdir) or folders.setdefault(subdir, _new_folder(channel / subdir))
    if package.resolve() == (folder.path / package.name).resolve():
        return 0  # indexed where it lies
    known = folder.records.get(package.name)
    copy = folder.path / f"{ASIDE}{package.name}"
    found = digest(package, None if known else copy)
    if known:
        if known["sha256"] != found.sha256:
            raise _conflict(package.name, folder, "the one given has other contents")
    else:
        folder.arriving[package.name] = copy
        for _ in package_file.members(package):  # to its end, so that nothing truncated is published
            pass
        _add(folder, package.name, package, found)
    _attest(folder, package.name, attestations.beside(package))
    return 1


def _add(folder: Folder, name: str, file: Path, found: Digest) -> None:
    described = package_file.read_description(file)
    subdir = described["index"].get("subdir")
    if subdir != folder.subdir:
        raise WrongSubdir(f"{name} is for {subdir}, but lies in {folder.subdir}: move it there")
    twin = next((other for other in _twins(name) if other in folder.records), None)
    if twin:
        raise _conflict(name, folder, f"it is there as {twin}")
    folder.records[name] = {**index.record(name, described["index"]), **asdict(found)}
    folder.seen[name] = index.facts(described)


def _attest(folder: Folder, name: str, given: Path) -> None:
    """Takes up the attestations of a package in the file `given`, if there is one."""
    record = folder.records[name]
    if given.is_file() and hashlib.sha256(given.read_bytes()).hexdigest() != record.get(attestations.KEY):
        data = attestations.joined(folder.path / name, record, given)
        folder.attested[name] = data
        record[attestations.KEY] = hashlib.sha256(data).hexdigest()


def _twins(name: str) -> list[str]:
    """The file names of the same package in other formats."""
    stem = str(package_file.identity(name))
    return [f"{stem}{suffix}" for suffix in package_file.SUFFIXES if name != f"{stem}{suffix}"]


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


def _write_index(folder: Folder, part: index.Part) -> None:
    tables = index.tables(part)
    for name in index.FILES:
        data = index.as_bytes(tables[name])
        write(folder.path / f"{name}.zst", tools.zstandard().ZstdCompressor(level=_LEVEL).compress(data))
        write(folder.path / name, data)
    write(folder.path / SEEN, json.dumps(folder.seen, sort_keys=True).encode())
