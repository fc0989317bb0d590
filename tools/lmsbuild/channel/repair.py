"""Makes a channel readable again whose index or packages are not what they have to be.

What is bad is set aside, in a folder beside those of the platforms, and the index is written anew from what is good. Nothing is
deleted. Packages are set aside last: a client never sees an index that names one of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

from lmsbuild.channel import attestations, channel, index
from lmsbuild.channel.channel import Folder
from lmsbuild.conda import package_file
from lmsbuild.conda.package_file import SUFFIXES, shown
from lmsbuild.errors import BadAttestation, BadChannel, DamagedPackage, NoSuchFile, PackageConflict, WrongSubdir
from lmsbuild.published import folder as published
from lmsbuild.published.folder import publishing, stamp
from lmsbuild.published.regular_file import read_file

SET_ASIDE = "set-aside"  # the folder


def repair(place: Path) -> list[str]:
    """Repairs the channel in the folder `place`, and returns what was done: one sentence each, none when it was good.

    Raises BadChannel, OutputNotWritable or NoSpace.
    """
    channel.subdirs(place)
    if (place / SET_ASIDE).is_symlink():
        raise BadChannel(f"{place / SET_ASIDE} is a link, and packages are set aside there: remove it")
    with publishing(place, "channel"):
        repairs = [_Repair(path, place / SET_ASIDE / path.name) for path in channel.subdirs(place)]
        for each in repairs:
            each.look()
        folders = {each.folder.subdir: each.folder for each in repairs}
        if channel.NOARCH not in folders:
            (place / channel.NOARCH).mkdir()
            folders[channel.NOARCH] = Folder(place / channel.NOARCH, {}, {})
        before = _tables(place, folders)
        done = []
        if _is_no_file(place / index.CHANNELDATA):
            (place / index.CHANNELDATA).rename(_new(place / SET_ASIDE, index.CHANNELDATA))
            done.append(f"{index.CHANNELDATA} is no file, and is set aside in {SET_ASIDE}")
        for each in repairs:
            each.set_aside_first()
        channel.write_index(place, folders.values())
        done += (f"{each.folder.subdir}/{sentence}" for each in repairs for sentence in each.done)
        changed = [name for name, data in _tables(place, folders).items() if data != before[name]]
        done += (f"{name} is written anew" for name in changed)
        for each in repairs:
            each.set_aside_last()
    return done


def _is_no_file(path: Path) -> bool:
    """Whether something is there in whose place no file can be written: a folder."""
    return path.is_dir() and not path.is_symlink()


def _new(aside: Path, name: str) -> Path:
    """Where a file is set aside, under a name that none has yet."""
    aside.mkdir(parents=True, exist_ok=True)
    number, new = 1, aside / name
    while os.path.lexists(new):
        number += 1
        new = aside / f"{name}.{number}"
    return new


def _tables(place: Path, folders: dict[str, Folder]) -> dict[str, str]:
    """A hash of each file of the index, by its name; empty where there is none."""
    names = [f"{subdir}/{name}{end}" for subdir in folders for name in index.FILES for end in ("", ".zst")]
    found = {}
    for name in (index.CHANNELDATA, *names):
        try:
            found[name] = hashlib.sha256(read_file(place / name)).hexdigest()
        except OSError:
            found[name] = ""
    return found


class _Repair:
    """One platform's part of the channel."""

    def __init__(self, path: Path, aside: Path) -> None:
        published.remove_leftovers(path)
        self.folder = Folder(path, {}, channel.read_facts(path))
        self.done: list[str] = []  # a sentence each
        self._aside = aside
        # To be set aside before the index is written, since something takes their place; each once, in this order.
        self._first: dict[Path, None] = {}
        self._last: list[Path] = []  # and afterwards
        self._attestations: dict[str, list[Path]] = {}  # files with those of a package, by the package's file name

    def look(self) -> None:
        """Reads every package anew; what is good becomes what the index says."""
        rows = self._rows()
        files = sorted(self.folder.path.iterdir())
        there = [path for path in files if path.name.endswith(SUFFIXES)]
        for path, suffix in product(files, SUFFIXES):
            package, named, _ = path.name.rpartition(f"{suffix}.sigs")
            if named:
                self._attestations.setdefault(f"{package}{suffix}", []).append(path)
        # Of two files of one package, that which the index names is the good one, and then the newer format.
        for path in sorted(there, key=lambda path: (path.name not in rows, path.name.endswith(SUFFIXES[1]))):
            self._look_at(path, rows.get(path.name))
        for name in sorted(rows.keys() - {path.name for path in there}):
            self._differs(f"{name} is no longer in the index, since its file is gone")
        for name in (*index.FILES, *(f"{name}.zst" for name in index.FILES), published.SEEN):
            path = self.folder.path / name
            for each in (path, published.aside(path)):
                if _is_no_file(each) and each not in self._first:
                    self._first[each] = None
                    self.done.append(f"{each.name} is no file, and is set aside in {self._shown}")
        self.folder.seen = {name: row for name, row in self.folder.seen.items() if name in self.folder.records}

    def _differs(self, sentence: str) -> None:
        """Notes what is wrong with the index, which is kept as it was."""
        self.done.append(sentence)
        self._first[self.folder.path / "repodata.json"] = None

    def _rows(self) -> dict[str, dict[str, Any]]:
        """What the index says, as far as it can be read."""
        if not os.path.lexists(self.folder.path / "repodata.json"):
            return {}
        try:
            rows = channel.read_rows(self.folder.path)
        except BadChannel as error:
            self._check_rights(error)
            self._differs(f"repodata.json could not be read: {error}")
            return {}
        good = {name: row for name, row in rows.items() if channel.is_record(name, row)}
        for name in sorted(rows.keys() - good.keys()):
            self._differs(f"repodata.json had a row for {shown(name)} that is of no package")
        return good

    def _look_at(self, path: Path, row: dict[str, Any] | None) -> None:
        name, records = path.name, self.folder.records
        try:
            package_file.identity(name)
            with package_file.opened(path) as package:
                status = stamp(os.fstat(package.file.fileno()))
                found = channel.digest(package)
                if row is None:
                    channel.check_twins(self.folder, name)
                channel.add(self.folder, package, found)
        except (DamagedPackage, NoSuchFile, WrongSubdir, PackageConflict) as error:
            self._check_rights(error)
            self._last += [path, *self._attestations.get(name, ())]
            self.done.append(f"{shown(name)} is set aside in {self._shown}: {error}")
            return
        self.folder.seen[name]["stamp"] = status
        self._attest(path, row)
        if row is None:
            self.done.append(f"{name} is in the index now")
        elif row["sha256"] != found.sha256:
            self._differs(
                f"{name} is not the file that was published, of sha256 {row['sha256']}: the index says {found.sha256} now"
            )
        elif {**row, attestations.KEY: ""} != {**records[name], attestations.KEY: ""}:
            self._differs(f"{name} has the row in the index that its index.json says")

    @property
    def _shown(self) -> str:
        return f"{SET_ASIDE}/{self.folder.subdir}"

    def _check_rights(self, error: Exception) -> None:
        """Raises BadChannel when what failed may be good, but this user or machine cannot read it."""
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EIO):
            raise BadChannel(
                f"{error}; it may be good, so nothing was changed: run as a user who may read it"
            ) from error

    def _attest(self, path: Path, row: dict[str, Any] | None) -> None:
        """Keeps the attestations of a package that are about it, those that the index names first."""
        record, name = self.folder.records[path.name], path.name
        if row and attestations.KEY in row:
            try:
                stated = {**record, attestations.KEY: row[attestations.KEY]}
                data = attestations.joined(path, stated, attestations.kept(path, row[attestations.KEY]))
                self._take_up(name, data)
            except BadAttestation as error:
                self.done.append(f"{name} has no attestations in the index any more: {error}")
        beside = attestations.beside(path)
        if os.path.lexists(beside):
            try:
                self._take_up(name, attestations.joined(path, record, beside))
            except BadAttestation as error:
                self._first[beside] = None
                self.done.append(f"{beside.name} is set aside in {self._shown}: {error}")

    def _take_up(self, name: str, data: bytes) -> None:
        self.folder.attested[name] = data
        self.folder.records[name][attestations.KEY] = hashlib.sha256(data).hexdigest()

    def set_aside_first(self) -> None:
        """Sets aside what others take the place of; a copy where clients read it until then."""
        for path in self._first:
            if path.name == "repodata.json" and path.is_file():
                shutil.copyfile(path, _new(self._aside, path.name))
            else:
                path.rename(_new(self._aside, path.name))

    def set_aside_last(self) -> None:
        for path in self._last:
            path.rename(_new(self._aside, path.name))
