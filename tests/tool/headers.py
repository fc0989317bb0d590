"""The headers of official wheels, fetched without the rest of the wheel where the registry serves parts of a file."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lmsbuild import report
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.errors import DownloadFailed
from lmsbuild.fetch import download, ranged
from lmsbuild.wheel.target import Target, python_of
from lmsbuild.wheel.wheel import WheelFile, record_hash

Links = Callable[[], Sequence[ranged.Link]]

EVERYTHING = ("torch/include/",)
C10 = ("torch/include/c10/", "torch/include/torch/headeronly/")  # all that the glue for CUDA includes
_ALWAYS = ("torch/lib/libc10.so", "torch/version.py")


def fetch(tag: Tag, wanted: Sequence[str], cache: Path, links: Links | None = None) -> Path:
    """A folder of the cache with the files of a wheel of `tag` whose names begin with one of `wanted`, and its libc10.so
    and version.py, laid out as in the wheel. `links` gets the package's, for a caller who asks for many tags; it is not
    called when the files are in the cache.
    """
    wanted = (*wanted, *_ALWAYS)
    (name,) = tag.records
    key = hashlib.sha256("\0".join(wanted).encode()).hexdigest()[:8]
    folder = cache / f"headers-{name}-{key}"
    if not _is_whole(tag.records[name], wanted, folder):
        shutil.rmtree(folder, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
        try:
            _unpack(tag, name, wanted, cache, fresh, links)
            assert _is_whole(tag.records[name], wanted, fresh), f"the headers of {name} are not those that RECORD lists"
            os.replace(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _is_whole(known: str, wanted: tuple[str, ...], folder: Path) -> bool:
    """Whether every file is there as RECORD lists it, and RECORD is the one that is known."""
    try:
        record = (folder / "RECORD").read_bytes()
        rows = [row for row in csv.reader(io.StringIO(record.decode())) if row[0].startswith(wanted)]
        return hashlib.sha256(record).hexdigest() == known and all(
            record_hash((folder / name).read_bytes()) == digest for name, digest, _ in rows
        )
    except FileNotFoundError:
        return False


def _unpack(tag: Tag, name: str, wanted: tuple[str, ...], cache: Path, folder: Path, links: Links | None) -> None:
    try:
        address = ranged.locate(tag.package, [name], links() if links else None)
        with ranged.open_address(address) as stream, WheelFile(Path(name), stream) as wheel:
            _write(wheel, wanted, folder)
    except DownloadFailed as error:
        report.note(f"{error}; fetching the whole wheel")
        abi, platform = name.removesuffix(".whl").split("-")[-2:]
        python = python_of(abi)
        assert python
        target = Target(python, platform.partition("_")[2], is_running=False)
        with WheelFile(download.fetch(tag, target, cache)) as wheel:
            _write(wheel, wanted, folder)


def _write(wheel: WheelFile, wanted: tuple[str, ...], folder: Path) -> None:
    members = [info for name, info in wheel.members.items() if name.startswith(wanted) and not info.is_dir()]
    for info in sorted(members, key=lambda info: info.header_offset):  # so that neighbours come in one request
        target = folder / info.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(wheel.read(info.filename))
    (folder / "RECORD").write_bytes(wheel.read(f"{wheel.dist_info}/RECORD"))
