"""Repositories that others made: what is looked at before git reads one, and how their objects are lent.

Git runs programs that a repository's settings name, and waits for ever at a pipe in the place of a file.
"""

from __future__ import annotations

import os
import posixpath
import pwd
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import git_command
from lmsbuild.errors import OtherOwner, UnsafeSource

_LONGEST = 1 << 12  # bytes of a path
_POINTER = 1 << 12  # bytes, at most, of a file that says where a folder is
_INCLUDE = r"^include(if\..*)?\.path$"

# Programs that attributes and events choose by a name of the repository's own, and what switches each of them off.
_BY_NAME = {
    "filter": {"clean": "", "smudge": "", "process": "", "required": "false"},
    "hook": {"enabled": "false"},
    "merge": {"driver": "false"},
}

# Programs that have one name. Those that git is never to need are `false`, which fails.
_PROGRAMS = {
    "core.alternateRefsCommand": "false",
    "core.askPass": "false",
    "core.editor": "false",
    "core.gitProxy": "false",
    "core.pager": "false",
    "core.sshCommand": "false",
    "credential.helper": "",
    "diff.external": "false",
    "gpg.program": "false",
    "sequence.editor": "false",
}


@dataclass(frozen=True)
class Repository:
    """Where git keeps what it knows: `.git`, or a bare repository."""

    top: Path  # the checkout, or the bare repository
    git: Path
    common: Path  # with the objects; another folder than `git` in one that `git worktree` made

    @property
    def modules(self) -> tuple[Path, ...]:
        """Where it may keep those of its submodules."""
        return tuple(dict.fromkeys((self.git / "modules", self.common / "modules")))


def find(place: Path) -> Repository | None:
    """The repository that git finds when it is given this path, if one is there. Raises UnsafeSource."""
    for each in (place / ".git", place, Path(f"{place}.git")):
        folder = each
        if each.is_file():
            said = _pointer(each)
            if not said.startswith("gitdir: "):
                continue
            folder = each.parent / said.removeprefix("gitdir: ")
        pointer = folder / "commondir"
        common = folder / _pointer(pointer) if pointer.exists() else folder
        if (folder / "HEAD").exists() and (common / "objects").is_dir() and (common / "refs").is_dir():
            top = each.parent if each.name == ".git" else each
            return Repository(top, Path(os.path.abspath(folder)), Path(os.path.abspath(common)))
    return None


def _pointer(file: Path) -> str:
    _check_files([file])
    with file.open("rb") as stream:
        return os.fsdecode(stream.read(_POINTER)).rstrip("\n")


def check_files(repository: Repository) -> None:
    """Raises UnsafeSource when git would not come to an end there."""
    _check_files([repository.git, repository.common])
    _check_files(_object_folders(repository.common / "objects"))
    _check_files(_included([repository.common / "config", repository.git / "config.worktree"]))


def check_owner(repository: Repository) -> None:
    """Raises OtherOwner when git would refuse to work there; `check_files` comes first."""
    settings = {"safe.bareRepository": "all"}
    done = git_command.run_as_user(repository.top, "rev-parse", "--git-dir", settings=settings)
    if done.code and "dubious ownership" in done.error_text:
        raise OtherOwner(
            f"{repository.top} belongs to {_owner(repository)}, and git works in no other user's repository: say that you "
            f"trust it by `git config --global --add safe.directory {shlex.quote(str(repository.top))}`, or clone it as yourself"
        )


def check_attributes(root: Path, files: Iterable[str]) -> None:
    """Raises UnsafeSource when git would not come to an end in a checkout with these files."""
    folders = {""}
    for file in files:
        # The system opens no longer path, and of a listing that somebody made up one may have a million folders.
        folder = posixpath.dirname(file[:_LONGEST])
        while folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    _check_files([root / ".gitmodules", *(root / folder / ".gitattributes" for folder in folders)])


def disarmed(listed: bytes) -> dict[str, str]:
    """The settings with which git runs no program that a repository's own ones name; `listed` are their names, each
    with a zero byte at its end. Raises UnsafeSource.
    """
    settings = dict(_PROGRAMS)
    for name in os.fsdecode(listed).split("\0"):
        section, _, rest = name.partition(".")
        driver, dot, _ = rest.rpartition(".")
        if section not in _BY_NAME or not dot:  # the name of a driver may be empty
            continue
        if "=" in driver or "\n" in driver:
            raise UnsafeSource(f"{name!r} in the settings of the checkout cannot be switched off: remove it")
        settings.update({f"{section}.{driver}.{key}": value for key, value in _BY_NAME[section].items()})
    return settings


def lend(repository: Repository, lender: Path) -> None:
    """Makes `lender`, a repository of our own, give out the objects of another one, none of whose settings are read.

    Raises UnsafeSource.
    """
    objects = repository.common / "objects"
    if "\n" in str(objects):
        raise UnsafeSource(f"git takes no objects from {str(objects)!r}: rename the folder")
    (lender / "objects/info").mkdir(exist_ok=True)
    (lender / "objects/info/alternates").write_bytes(os.fsencode(objects) + b"\n")
    with (lender / "config").open("a") as settings:
        settings.write("[uploadpack]\n\tallowFilter = true\n\tallowAnySHA1InWant = true\n")
    if (repository.common / "shallow").is_file():
        shutil.copyfile(repository.common / "shallow", lender / "shallow")


def _object_folders(first: Path) -> list[Path]:
    """The folders of objects that this one refers to."""
    found: dict[Path, None] = {}  # in their order
    waiting = [first]
    while waiting:
        folder = waiting.pop()
        file = folder / "info/alternates"
        if folder in found:
            continue
        found[folder] = None
        _check_files([file])
        if not file.is_file():
            continue
        for line in os.fsdecode(file.read_bytes()).splitlines():
            if line.startswith('"'):
                raise UnsafeSource(f"{file} quotes the name of a folder: write it without quotation marks")
            if line and not line.startswith("#"):
                waiting.append(Path(os.path.normpath(folder / line)))
    return [*found]


def _included(files: list[Path]) -> Iterator[Path]:
    """These files of settings, and all that they include, under a condition or not."""
    seen: set[Path] = set()
    waiting = [*files]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        yield file
        if not file.is_file():
            continue
        words = ("config", "--file", file, "--no-includes", "--null", "--get-regexp", _INCLUDE)
        for entry in git_command.run(Path(os.sep), *words).output.split(b"\0"):
            value = os.fsdecode(entry.partition(b"\n")[2])
            if value:
                waiting.append(file.parent / os.path.expanduser(value))


def _check_files(paths: Iterable[Path]) -> None:
    """Raises UnsafeSource when one of them, or something below, is a pipe or a device."""
    seen: set[tuple[int, int]] = set()
    for first in paths:
        waiting = [first]
        while waiting:
            path = waiting.pop()
            try:
                status = path.stat()
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                if stat.S_ISDIR(status.st_mode):
                    waiting.extend(path.iterdir())
            except OSError:  # not there, or not to be read by git either
                continue
            if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                raise UnsafeSource(f"{path} is no file but a pipe or a device, which git would wait for: remove it")


def _owner(repository: Repository) -> str:
    owners = [path.stat().st_uid for path in (repository.top, repository.git)]
    number = next((owner for owner in owners if owner != os.geteuid()), owners[0])
    try:
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except KeyError:
        return f"user {number}"
