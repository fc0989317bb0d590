"""An index of wheels in a folder: the wheels, the METADATA of each beside it, and the pages that pip and uv read.

A client sees a valid index at every moment, however publishing ends: a wheel is there before a page names it, and each file
is written aside and renamed. No wheel leaves an index, and none changes, since users may have locked its hash.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name, parse_wheel_filename

from lmsbuild import report, workspace
from lmsbuild.errors import BadChannel, DamagedWheel, FolderInUse, NoSuchFile, PackageConflict
from lmsbuild.index import pages
from lmsbuild.index.pages import Row
from lmsbuild.published.folder import SEEN, Published, publishing, read_json, read_seen, stamp, write
from lmsbuild.published.regular_file import read_file
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.wheel import WheelFile, file_sha256

_COMMAND = "lmsbuild index"
_NAME = re.compile(r"[A-Za-z0-9._+!-]+")  # of a file; what else a name may hold, no wheel's name does


@dataclass
class _Index:
    """The index as it is to be."""

    folder: Path
    rows: dict[str, Row]  # by file name
    names: dict[tuple[object, ...], str]  # the same file names, by what they say
    seen: dict[str, list[int]]  # size and date of the files when they were hashed
    metadata: dict[str, bytes] = field(default_factory=dict)  # of what is new, by file name
    arriving: dict[str, Path] = field(default_factory=dict)  # complete copies elsewhere, by file name


def publish(folder: Path, wheels: Sequence[Path] = ()) -> Published:
    """Adds wheels to the index in `folder`, which is made when it is missing, and writes its pages.

    Wheels that lie in the folder already are indexed, too. Either all are added or none is. Raises DamagedWheel,
    TamperedWheel, UnsafeMember, PackageConflict, BadChannel, FolderInUse, NoSuchFile or OutputNotWritable.
    """
    if not wheels and not _wheels_in(folder):
        raise NoSuchFile(f"there is no wheel in {folder}: name those that go there, `{_COMMAND} {folder} WHEEL`")
    for wheel in wheels:
        InputFile(wheel).close()
    _check_page(folder / "index.html")  # before a lock is made in a folder of somebody else's
    with publishing(folder, "index"), workspace.workspace(folder, f"`{_COMMAND}`") as scratch:
        index = _read(folder, wheels)
        before = set(index.rows)
        hashed = _index_found(index, scratch) + sum(_take(wheel, index, scratch) for wheel in wheels)
        _settle(index)
    return Published(tuple(sorted(set(index.rows) - before)), len(before), hashed)


def _wheels_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.whl") if not path.name.startswith("."))


def _read(folder: Path, wheels: Sequence[Path]) -> _Index:
    """What is there of an index in the folder, which takes these wheels."""
    root = folder / "index.json"
    named = {parse_name(path).package for path in (*_wheels_in(folder), *wheels)}
    rows: dict[str, Row] = {}
    try:
        # What an interrupted run had not yet put into the list of projects has wheels that lie here.
        listed = pages.read_root(read_json(root, _COMMAND)) if root.exists() else []
        if wrong := [name for name in listed if canonicalize_name(name) != name or not _NAME.fullmatch(name)]:
            raise TypeError(f"{wrong[0]!r} is no project's name")
        for project in sorted({*named, *listed}):
            if (folder / project).is_symlink():
                raise BadChannel(f"{folder / project} is a link, and pages are written there: remove it")
            _check_page(folder / project / "index.html")
            page = folder / project / "index.json"
            if page.exists() or project in listed:
                rows |= {row.file: row for row in pages.read_project(read_json(page, _COMMAND))}
        names: dict[tuple[object, ...], str] = {parse_wheel_filename(name): name for name in rows}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise BadChannel(
            f"{folder} has an index.json that is not of an index of wheels ({error}): put back the one that was "
            "published, or give another folder"
        ) from error
    return _Index(folder, rows, names, read_seen(folder / SEEN, _COMMAND))


def _check_page(path: Path) -> None:
    try:
        is_ours = pages.MARK in read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:  # a pipe, too, which is not waited for
        is_ours = False
    if not is_ours:
        raise FolderInUse(f"{path} is a page of something else, which an index would replace: give another folder")


def _index_found(index: _Index, scratch: Path) -> int:
    """Indexes what lies in the folder and is new; returns how many files were read. Nothing that was known may differ."""
    there = {path.name: path for path in _wheels_in(index.folder)}
    if gone := sorted(set(index.rows) - set(there)):
        raise BadChannel(
            f"{gone[0]} is in the index, but its file is gone: put it back, since users may have locked it"
        )
    read = 0
    for name, path in there.items():
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise BadChannel(f"{path} is a link, whose file can change or vanish: put the file itself there")
        known, found = index.rows.get(name), stamp(status)
        if known and index.seen.get(name) == found and known.size == status.st_size:
            continue
        read += 1
        if known is None:
            _add(index, path, scratch)
        elif known.sha256 != file_sha256(path):
            raise _conflict(name, "the file that lies there is not the one that was published")
        index.seen[name] = found
    return read


def _take(wheel: Path, index: _Index, scratch: Path) -> int:
    """Copies a wheel into `scratch` and indexes the copy; returns how many files were read."""
    if wheel.resolve() == (index.folder / wheel.name).resolve():
        return 0  # indexed where it lies
    with InputFile(wheel) as file:
        if known := index.rows.get(wheel.name):
            if known.sha256 != file.sha256():
                raise _conflict(wheel.name, "the one given has other contents")
            return 1
        copy = scratch / wheel.name
        file.copy_to(copy)
    copy.chmod(0o644)
    _add(index, copy)
    index.arriving[wheel.name] = copy
    return 1


def _add(index: _Index, wheel: Path, private: Path | None = None) -> None:
    """Checks a wheel, its name, its METADATA and every file of it, and adds its row.

    One that lies where others may write to it is read from a copy in `private`.
    """
    if not _NAME.fullmatch(wheel.name):
        raise DamagedWheel(f"{wheel.name!r} is not the name of a wheel: keep the name under which it was published")
    identity = parse_wheel_filename(wheel.name)
    if twin := index.names.get(identity):
        raise _conflict(wheel.name, f"it is there as {twin}")
    with InputFile(wheel) as opened:
        sha256, size = opened.make_private(private) if private else opened.sha256(), opened.size
        with WheelFile(opened) as file:
            metadata = file.read(f"{file.dist_info}/METADATA")
            stated, _ = parse_email(metadata)
            file.check_installable()
            with report.progress(f"verify {wheel.name}", file.total_size(), is_bytes=True) as show:
                file.verify(lambda name: None, show)
    index.rows[wheel.name] = Row(
        file=wheel.name,
        sha256=sha256,
        size=size,
        metadata=hashlib.sha256(metadata).hexdigest(),
        requires_python=stated.get("requires_python", ""),
    )
    index.names[identity] = wheel.name
    index.metadata[wheel.name] = metadata


def _conflict(name: str, what: str) -> PackageConflict:
    return PackageConflict(
        f"the index has {name} already, and {what}: users may have locked it, so give the new one a build number, for "
        "example with `wheel tags --build 1 FILE`"
    )


def _settle(index: _Index) -> None:
    """Moves what arrives into its place, then the pages that name it."""
    for name, copy in index.arriving.items():
        workspace.publish(copy, index.folder / name)
        index.seen[name] = stamp((index.folder / name).stat())
    projects: dict[str, list[Row]] = {}
    for name, row in index.rows.items():
        _write_metadata(index, row)
        projects.setdefault(parse_name(Path(name)).package, []).append(row)
    for project, rows in projects.items():
        (index.folder / project).mkdir(exist_ok=True)
        _write_pages(index.folder / project, pages.project(project, rows))
    _write_pages(index.folder, pages.root(projects))
    write(index.folder / SEEN, json.dumps(index.seen, sort_keys=True).encode())


def _write_metadata(index: _Index, row: Row) -> None:
    path = index.folder / f"{row.file}.metadata"
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == row.metadata:
        return
    data = index.metadata.get(row.file)
    if data is None:
        with WheelFile(index.folder / row.file) as file:
            data = file.read(f"{file.dist_info}/METADATA")
    write(path, data)


def _write_pages(folder: Path, contents: dict[str, bytes]) -> None:
    for name, data in contents.items():
        write(folder / name, data)
