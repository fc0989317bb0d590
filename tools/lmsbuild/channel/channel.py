"""A conda channel in a folder: packages by platform, and the index that clients read.

A client sees a valid channel at every moment, however publishing ends: packages are there before the index names them, and
each file is written aside and renamed. No package leaves a channel, since users may have locked it.

py-rattler's index_fs (0.28 was tried) does not write the index: it stamps each record with the time, so that the same
packages give other bytes, writes no run_exports.json, takes no lock, drops a package whose file is gone, and does not see
that a file has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmsbuild.conda import package_file
from lmsbuild.conda.package_file import missing_tools
from lmsbuild.errors import BadChannel, DamagedPackage, NoSuchFile, PackageConflict, WrongSubdir
from lmsbuild.published.folder import ASIDE, SEEN, Published, publishing, read_json, stamp, write

NOARCH = "noarch"
_COMMAND = "lmsbuild channel publish"
_CHUNK = 1 << 20  # bytes
_LEVEL = 12  # of the index's compression
_NOT_INDEXED = ("arch", "platform")  # that index.json has, and the index does not need


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
    run_exports: dict[str, dict[str, Any]]
    seen: dict[str, list[int]]  # size and date of the files when they were hashed
    changed: bool = False
    arriving: dict[str, Path] = field(default_factory=dict)  # complete copies under other names, by file name

    @property
    def subdir(self) -> str:
        return self.path.name


def publish(channel: Path, packages: Iterable[Path]) -> Published:
    """Adds packages to the channel in the folder `channel`, which is made when it is missing, and writes its index.

    Packages that were put into the folders by other means are indexed too. Either all are added or none is. Raises
    DamagedPackage, WrongSubdir, PackageConflict, BadChannel, NoSuchFile or OutputNotWritable.
    """
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
            for folder in folders.values():
                _settle(folder)
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
    return _merged(read_json(folder / "repodata.json", _COMMAND))


def subdirs(channel: Path) -> list[Path]:
    """The folders of a channel, one for each platform. Raises BadChannel when there is none."""
    found = _subdirs(channel)
    if not found:
        raise BadChannel(f"{channel} is no channel: `lmsbuild channel publish {channel} PACKAGE` makes one")
    return found


def digest(path: Path, copy: Path | None = None) -> Digest:
    """Reads a file once: hashes it, and writes it to `copy` on the way."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    with path.open("rb") as source:
        sink = copy.open("wb") if copy else None
        try:
            while chunk := source.read(_CHUNK):
                md5.update(chunk)
                sha256.update(chunk)
                size += len(chunk)
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
    zstandard = _zstandard()
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
    return Folder(path, {}, {}, {}, changed=True)


def _read_folder(path: Path) -> Folder:
    for left in path.glob(f"{ASIDE}*"):
        left.unlink()
    index = path / "repodata.json"
    if not index.exists():
        return _new_folder(path)
    seen = path / SEEN
    exports = path / "run_exports.json"
    return Folder(
        path,
        read_index(path),
        _merged(read_json(exports, _COMMAND)) if exports.exists() else {},
        read_json(seen, _COMMAND) if seen.exists() else {},
        changed=any(not (path / name).exists() for name in _index_names()),
    )


def _merged(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {**table.get("packages", {}), **table.get("packages.conda", {})}


def _index_found(folder: Folder) -> int:
    """Indexes what lies in the folder and is new; returns how many files were read. Nothing that was known may differ."""
    there = {path.name: path.stat() for path in folder.path.iterdir() if path.name.endswith(package_file.SUFFIXES)}
    gone = sorted(set(folder.records) - set(there))
    if gone:
        raise BadChannel(
            f"{folder.subdir}/{gone[0]} is in the index, but its file is gone: put it back, since users may have locked it"
        )
    hashed = 0
    for name, status in sorted(there.items()):
        known = folder.records.get(name)
        found_stamp = stamp(status)
        if known and folder.seen.get(name) == found_stamp and known["size"] == status.st_size:
            continue
        found = digest(folder.path / name)
        hashed += 1
        if known is None:
            _add(folder, name, folder.path / name, found)
        elif known["sha256"] != found.sha256:
            raise _conflict(name, folder, "the file in the channel is not the one that was published")
        folder.seen[name] = found_stamp
        folder.changed = True
    return hashed


def _take(package: Path, channel: Path, folders: dict[str, Folder]) -> int:
    """Copies a package beside its place and indexes it; returns how many files were read."""
    if not package.is_file():
        raise NoSuchFile(f"there is no file {package}")
    index = package_file.read_description(package)["index"]
    subdir = index.get("subdir")
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
        return 1
    folder.arriving[package.name] = copy
    for _ in package_file.members(package):  # to its end, so that nothing truncated is published
        pass
    _add(folder, package.name, package, found)
    return 1


def _add(folder: Folder, name: str, file: Path, found: Digest) -> None:
    described = package_file.read_description(file)
    index = described["index"]
    if index.get("subdir") != folder.subdir:
        raise WrongSubdir(f"{name} is for {index.get('subdir')}, but lies in {folder.subdir}: move it there")
    if not isinstance(index.get("depends", []), list):
        raise DamagedPackage(f"{name} has an index.json without a list of what it requires: build it again")
    twin = next((other for other in _twins(name) if other in folder.records), None)
    if twin:
        raise _conflict(name, folder, f"it is there as {twin}")
    record = {key: value for key, value in index.items() if key not in _NOT_INDEXED}
    folder.records[name] = {**record, "md5": found.md5, "sha256": found.sha256, "size": found.size}
    folder.run_exports[name] = {"run_exports": described.get("run_exports", {})}
    folder.changed = True


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
    """Moves what arrives into its place, then the index that names it."""
    for name, copy in list(folder.arriving.items()):
        target = folder.path / name
        copy.chmod(0o644)
        os.replace(copy, target)
        del folder.arriving[name]
        folder.seen[name] = stamp(target.stat())
    if not folder.changed:
        return
    index = _index_file(folder, folder.records, {"repodata_version": 1, "removed": []})
    exports = _index_file(folder, folder.run_exports, {"version": 1})
    compressor = _zstandard().ZstdCompressor(level=_LEVEL)
    contents = (exports, compressor.compress(exports), compressor.compress(index), index)
    for name, data in zip(_index_names(), contents, strict=True):
        write(folder.path / name, data)
    write(folder.path / SEEN, json.dumps(folder.seen, sort_keys=True).encode())
    folder.changed = False


def _index_names() -> tuple[str, ...]:
    """In the order in which they are written: the one that every client can read comes last."""
    return ("run_exports.json", "run_exports.json.zst", "repodata.json.zst", "repodata.json")


def _index_file(folder: Folder, rows: dict[str, dict[str, Any]], head: dict[str, Any]) -> bytes:
    new = {name: row for name, row in rows.items() if name.endswith(".conda")}
    old = {name: row for name, row in rows.items() if name not in new}
    table = {"info": {"subdir": folder.subdir}, "packages": old, "packages.conda": new, **head}
    return (json.dumps(table, indent=1, sort_keys=True) + "\n").encode()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise missing_tools("zstandard") from error
    return zstandard
