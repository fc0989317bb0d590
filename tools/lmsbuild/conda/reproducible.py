"""Writes a package anew so that the same contents give the same bytes, whenever, wherever and by whomever it was built.

rattler-build (0.73 was tried) stamps every file with the time of the build, whatever SOURCE_DATE_EPOCH says, and adds a file
that names its folders.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from lmsbuild import report, source_date
from lmsbuild.conda import tools

_INDEX = "info/index.json"
_LEFT_OUT = ("info/recipe/rendered_recipe.yaml",)  # says where it was built, and when
_CHUNK = 1 << 20  # bytes


def rewrite(package: Path, target: Path, seconds: int, level: int, threads: int, added: Mapping[str, bytes]) -> None:
    """Writes the `.conda` file `package` to `target`, compressed anew, with one date for everything in it.

    `seconds` are since 1970, `added` more files below info/, by name. Each file's contents, mode and place in the order stay; files belong to user and group 0. The number
    of threads does not change the bytes.
    """
    zstandard = tools.zstandard()
    date = source_date.archive_date(seconds)
    with (
        zipfile.ZipFile(package) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as sink,
        report.progress("compress", sum(entry.compress_size for entry in source.infolist()), is_bytes=True) as show,
    ):
        for entry in source.infolist():
            info = zipfile.ZipInfo(entry.filename, date)
            info.external_attr = 0o100644 << 16
            if not entry.filename.endswith(".tar.zst"):
                sink.writestr(info, source.read(entry))
                continue
            compressor = zstandard.ZstdCompressor(level=level, threads=max(1, threads))
            with ExitStack() as stack:
                packed = stack.enter_context(source.open(entry))
                stream = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
                unpacked = stack.enter_context(io.BufferedReader(stream, _CHUNK))
                written = stack.enter_context(sink.open(info, "w", force_zip64=True))
                # Not closed by what it writes to: closing the compressor ends the frame, and the archive's entry stays open.
                compressed = stack.enter_context(compressor.stream_writer(written, closefd=False))
                own = added if entry.filename.startswith("info-") else {}
                for _ in _copied(unpacked, compressed, seconds, own):
                    show(entry.header_offset + packed.tell())  # the parts before it end where it begins


def _copied(source: IO[bytes], sink: Any, seconds: int, added: Mapping[str, bytes]) -> Iterator[str]:
    """Copies a tar file, and adds files; yields the names of its members as they are written."""
    with (
        tarfile.open(fileobj=source, mode="r|") as old,
        tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_CHUNK) as new,
    ):
        for member in old:
            if member.name in _LEFT_OUT:
                continue
            data = old.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
            member.pax_headers = {}
            if member.name == _INDEX and data is not None:
                index = json.load(data)
                index["timestamp"] = seconds * 1000
                text = json.dumps(index, indent=2).encode()
                member.size, data = len(text), io.BytesIO(text)
            new.addfile(member, data)
            yield member.name
        for name, content in sorted(added.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), seconds
            new.addfile(member, io.BytesIO(content))
            yield name
