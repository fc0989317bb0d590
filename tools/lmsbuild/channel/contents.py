"""Whether what a package has is what its paths.json says, and stays inside of the environment that it is put into."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lmsbuild.conda.package_file import INFO, Member, shown

_SET_ID = 0o6000  # bits of a mode: whoever runs the file becomes its owner
_MOST_LINKS = 40  # that lead from one to the next, as the system takes
_LONGEST = 1024  # characters of a path; the system takes 4096 bytes, and the environment has a path, too
_CHUNK = 1 << 16  # bytes
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and bytes that are no characters
_TYPES = {"file": "hardlink", "hard link": "hardlink", "link": "softlink", "folder": "directory"}  # in paths.json

Look = Callable[[str, bytes], Iterator[str]]  # finds what is wrong with a file, by name and contents


@dataclass(frozen=True)
class _Found:
    kind: str
    sha256: str = ""  # of a file
    size: int = 0  # bytes


class Contents:
    """The members of a package, looked at one after the other."""

    def __init__(self, magic: bytes = b"", look: Look | None = None) -> None:
        """`look` gets every file that begins with `magic`."""
        self._magic, self._look = magic, look
        self._found: dict[str, _Found] = {}
        self._links: dict[str, str] = {}

    def add(self, member: Member) -> Iterator[str]:
        """What is wrong with the next member, whose contents are read. Raises DamagedPackage."""
        name, known = shown(member.name), self._found.get(member.name)
        if member.kind == "folder" and member.name in ("", "."):
            return
        if not _is_inside(member.name):
            yield f"has {name}, which is no path inside of the environment"
            return
        if known and not known.kind == member.kind == "folder":
            yield f"has {name} twice"
        if member.part and (member.part == "info") != _is_info(member.name):
            yield f"has {name} in its part {member.part}"
        if member.kind not in _TYPES:
            yield f"has {name}, which is a {member.kind}"
        if member.kind in ("file", "hard link") and member.mode & _SET_ID:
            yield f"has {name}, with which others become its owner or group (mode {member.mode & 0o7777:o})"
        if member.kind == "link":
            self._links[member.name] = member.target
        if member.kind == "hard link":
            yield from self._add_hard_link(member)
        elif member.file is None or _is_info(member.name):
            self._found[name] = _Found(member.kind)
        else:
            yield from self._add_file(member)

    def _add_hard_link(self, member: Member) -> Iterator[str]:
        other = self._found.get(member.target.removeprefix("./"))
        if other is None or other.kind != "file":
            yield f"has {shown(member.name)}, a hard link to {shown(member.target)}, which is no file before it"
        self._found[member.name] = other if other and other.kind == "file" else _Found(member.kind)

    def _add_file(self, member: Member) -> Iterator[str]:
        assert member.file
        hashed, size = hashlib.sha256(), 0
        chunk = member.file.read(_CHUNK)
        chunks = [chunk] if self._look and chunk.startswith(self._magic) else None
        while chunk:
            hashed.update(chunk)
            size += len(chunk)
            chunk = member.file.read(_CHUNK)
            if chunks is not None:
                chunks.append(chunk)
        self._found[member.name] = _Found(member.kind, hashed.hexdigest(), size)
        if self._look and chunks is not None:
            yield from self._look(member.name, b"".join(chunks))

    def end(self, paths: Mapping[str, Any] | None) -> Iterator[str]:
        """What is wrong with all of them together; `paths` is what paths.json says."""
        for name, target in self._links.items():
            if fault := self._leads(name):
                yield f"has {shown(name)}, a link to {shown(target)}, which {fault}"
        no_folders = {name for name, found in self._found.items() if found.kind != "folder"}
        for folder in sorted({folder for name in self._found for folder in _folders(name) if folder in no_folders}):
            yield f"has {shown(folder)}, which is a {self._found[folder].kind}, and files below it"
        if paths is None:
            yield "has no info/paths.json, which says what it installs"
        else:
            yield from self._compare(paths)

    def _leads(self, name: str) -> str:
        """What is wrong with where a link leads, by way of other links; "" when nothing is."""
        left, at, followed = name.split("/")[::-1], list[str](), 0
        while left:
            part = left.pop()
            if part == ".." and not at:
                return "leads out of the environment"
            if part == "..":
                at.pop()
            elif part not in ("", "."):
                at.append(part)
                target = self._links.get("/".join(at))
                if target is None:
                    continue
                followed += 1
                if not target or followed > _MOST_LINKS:
                    return "leads nowhere"
                if target.startswith("/") or len(target) > _LONGEST or _CONTROL.search(target):
                    return "leads out of the environment"
                at.pop()
                left += target.split("/")[::-1]
        return ""

    def _compare(self, paths: Mapping[str, Any]) -> Iterator[str]:
        rows: dict[str, Any] = {}
        for row in paths.get("paths", []):
            if row["_path"] in rows:
                yield f"has a paths.json that lists {shown(row['_path'])} twice"
            rows[row["_path"]] = row
        for path, found in self._found.items():
            listed, name = rows.pop(path, None), shown(path)
            if _is_info(path):
                if listed:
                    yield f"has a paths.json that lists {name}, which is not installed"
            elif listed is None:
                if found.kind != "folder":
                    yield f"has {name}, which its paths.json does not list"
            elif listed.get("path_type", "hardlink") != _TYPES.get(found.kind):
                yield f"{name} is a {found.kind}, and paths.json says {listed.get('path_type')}"
            elif found.kind == "file" and (
                listed.get("sha256") not in (None, found.sha256)
                or listed.get("size_in_bytes") not in (None, found.size)
            ):
                yield f"{name} is not what paths.json says"
        yield from (f"lacks {shown(name)}, which its paths.json lists" for name in sorted(rows))


def _is_info(name: str) -> bool:
    return name == "info" or name.startswith(INFO)


def _is_inside(name: str) -> bool:
    return (
        len(name) <= _LONGEST
        and not _CONTROL.search(name)
        and all(part not in ("", ".", "..") for part in name.split("/"))
    )


def _folders(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name
