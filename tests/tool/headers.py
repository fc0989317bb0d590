"""The headers of official wheels, fetched without the rest of the wheel where the registry serves parts of a file."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import download, ranged, report
from lmsbuild.catalogue import Release
from lmsbuild.errors import DownloadFailed
from lmsbuild.target import Target
from lmsbuild.wheel import WheelFile, record_hash

_WANTED = ("torch/include/", "torch/lib/libc10.so", "torch/version.py")


@dataclass(frozen=True)
class Headers:
    """A release that the glue has to compile against."""

    version: str
    standard: str
    file: str  # name of the official wheel
    wheel: str  # its sha256
    record: str  # sha256 of its RECORD, taken from a wheel with that hash


def fetch(headers: Headers, cache: Path) -> Path:
    """A folder of the cache with the wheel's headers, and its libc10.so and version.py, laid out as in the wheel."""
    folder = cache / f"headers-{headers.file}"
    if not _is_whole(headers, folder):
        shutil.rmtree(folder, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
        try:
            _unpack(headers, cache, fresh)
            assert _is_whole(headers, fresh), f"the headers of {headers.file} are not those that its RECORD lists"
            os.replace(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _is_whole(headers: Headers, folder: Path) -> bool:
    """Whether every file is there as RECORD lists it, and RECORD is the one that is known."""
    try:
        record = (folder / "RECORD").read_bytes()
        rows = [row for row in csv.reader(io.StringIO(record.decode())) if row[0].startswith(_WANTED)]
        return hashlib.sha256(record).hexdigest() == headers.record and all(
            record_hash((folder / name).read_bytes()) == digest for name, digest, _ in rows
        )
    except FileNotFoundError:
        return False


def _unpack(headers: Headers, cache: Path, folder: Path) -> None:
    try:
        address = ranged.locate("torch", [headers.file])
        with ranged.open_address(address) as stream, WheelFile(Path(headers.file), stream) as wheel:
            _write(wheel, folder)
    except DownloadFailed as error:
        report.note(f"{error}; fetching the whole wheel")
        _, _, python, _, platform = headers.file.removesuffix(".whl").split("-")
        target = Target(f"3.{python.removeprefix('cp3')}", platform.partition("_")[2], is_running=False)
        release = Release("torch", headers.version, {headers.file: headers.wheel})
        with WheelFile(download.fetch(release, target, cache)) as wheel:
            _write(wheel, folder)


def _write(wheel: WheelFile, folder: Path) -> None:
    wanted = [info for name, info in wheel.members.items() if name.startswith(_WANTED) and not info.is_dir()]
    for info in sorted(wanted, key=lambda info: info.header_offset):  # so that neighbours come in one request
        target = folder / info.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(wheel.read(info.filename))
    (folder / "RECORD").write_bytes(wheel.read(f"{wheel.dist_info}/RECORD"))
