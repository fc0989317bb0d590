"""Conda packages made byte by byte, of any contents: what no builder writes, a channel has to refuse."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import zstandard

from lmsbuild.conda.package_file import Package
from stand_ins import SUBDIR

NAME = "raw-1.0-0"
INDEX = {"name": "raw", "version": "1.0", "build": "0", "build_number": 0, "depends": [], "subdir": SUBDIR}
DATA = b"data\n"
KINDS = {"hardlink": tarfile.REGTYPE, "softlink": tarfile.SYMTYPE, "directory": tarfile.DIRTYPE}

Row = tuple[tarfile.TarInfo, bytes]


def file(name: str, data: bytes = DATA, mode: int = 0o644) -> Row:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    return info, data


def other(name: str, kind: bytes, target: str = "") -> Row:
    """A member that has no contents."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def link(name: str, target: str) -> Row:
    return other(name, tarfile.SYMTYPE, target)


def tar(rows: Iterable[Row]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as made:
        for info, data in rows:
            made.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def listed(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """What paths.json says of these."""
    types = {kind: name for name, kind in KINDS.items()}
    return [
        {
            "_path": info.name.removeprefix("./"),
            "path_type": types.get(info.type, "hardlink"),
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
        }
        for info, data in rows
    ]


def tables(rows: Iterable[Row], index: Any = INDEX, **others: Any) -> dict[str, Any]:
    """The JSON files below info/, by name; a text stands for itself, None for a file that is not there."""
    return {"index": index, "paths": {"paths": listed(rows), "paths_version": 1}, **others}


def info(described: Mapping[str, Any]) -> list[Row]:
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in described.items()}
    return [file(f"info/{name}.json", texts[name].encode()) for name, table in described.items() if table is not None]


def conda(parts: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return packed.getvalue()


def parts(about: bytes, contents: bytes, stem: str = NAME) -> dict[str, bytes]:
    """What a .conda file consists of, in order, of two tar files."""
    return {
        "metadata.json": b'{"conda_pkg_format_version": 2}',
        f"pkg-{stem}.tar.zst": zstandard.compress(contents),
        f"info-{stem}.tar.zst": zstandard.compress(about),
    }


def build(rows: Iterable[Row] = (), described: Mapping[str, Any] | None = None, *, more: Iterable[Row] = ()) -> bytes:
    """A .conda file of what is installed, what describes that, and more members beside what describes it."""
    rows = list(rows)
    return conda(parts(tar([*info(tables(rows) if described is None else described), *more]), tar(rows)))


def build_old(rows: Iterable[Row] = (), described: Mapping[str, Any] | None = None) -> bytes:
    """The same as a .tar.bz2 file."""
    rows = list(rows)
    return bz2.compress(tar([*info(tables(rows) if described is None else described), *rows]))


def package(data: bytes, name: str = f"{NAME}.conda") -> Package:
    return Package(name, io.BytesIO(data), len(data))
