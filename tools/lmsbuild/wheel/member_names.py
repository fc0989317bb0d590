"""The names that members of a wheel may have: those that every system unpacks to one place, below the wheel's folder."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Sequence
from itertools import pairwise

from lmsbuild.errors import TamperedWheel, UnsafeMember

_LONGEST = 255  # bytes of a file's name, without folders, that Linux takes
_UTF8 = 0x800  # flag: the name is UTF-8


def check(members: Sequence[zipfile.ZipInfo], wheel: str) -> None:
    """Raises UnsafeMember for a name that is none of a file in the wheel, and for what is no file or folder; TamperedWheel when
    two have the same.
    """
    seen: dict[str, str] = {}  # names by how a system that ignores case has them
    for info in members:
        name = info.filename
        if why := _fault(info) or _kind(info):
            raise UnsafeMember(f"{wheel} has a member {name!r}, {why}: do not use this file")
        if seen.setdefault(name.casefold(), name) is not name:
            raise TamperedWheel(f"{wheel} holds the same name twice, {name!r}: do not use this file")
    # With a character before all others in the place of the slash, what is in a folder follows at once upon a file of that name.
    ordered = sorted(folded.replace("/", "\0") for folded in seen)
    for file, following in pairwise(ordered):
        if following.startswith(f"{file}\0"):
            name = seen[file.replace("\0", "/")]
            raise UnsafeMember(f"{wheel} has {name!r} as a file and as a folder: do not use this file")


def _fault(info: zipfile.ZipInfo) -> str:
    """What is wrong with a member's name; empty: nothing."""
    name = info.filename
    if name != info.orig_filename or not (name.isascii() or info.flag_bits & _UTF8):
        return "whose name is not plain UTF-8"
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        return "whose name leads outside the wheel"
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in name):
        return "whose name has control characters"
    parts = name.removesuffix("/").split("/")
    if "." in parts or "" in parts:
        return "whose name has an empty part, or one that is a dot"
    if any(len(part.encode()) > _LONGEST for part in parts):
        return f"whose name has a part of more than {_LONGEST} bytes"
    return ""


def _kind(info: zipfile.ZipInfo) -> str:
    """What is wrong with a member's kind; empty: nothing."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "which is a link"
    return "" if kind in (0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG) else "which is no file or folder"
