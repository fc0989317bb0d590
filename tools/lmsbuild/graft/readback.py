"""Reads the finished wheel back from the disk, as an installer would, before anybody else sees it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from lmsbuild import report
from lmsbuild.errors import DamagedWheel, NoSuchFile, TamperedWheel, UnsafeMember
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile
from lmsbuild.workspace import publish


def check_and_publish(finished: Path, copied: Mapping[str, zipfile.ZipInfo], target: Path) -> None:
    """Checks every member against RECORD, and those that are `copied`, by name, against what they are in the base wheel; then
    moves the file that was checked into its place. Raises DamagedWheel, and OSError.
    """
    report.stage("check")
    try:
        with InputFile(finished) as file:
            _check(file, copied)
            report.stage("publish")
            if not file.is_at(finished):
                raise TamperedWheel(f"another file took the place of {finished.name}")
            publish(finished, target)
    except (DamagedWheel, TamperedWheel, UnsafeMember, NoSuchFile) as error:
        raise DamagedWheel(
            f"the finished wheel is not what was written, so it is not published ({error}): check this machine's disk and "
            "memory, and build it again"
        ) from error


def _check(file: InputFile, copied: Mapping[str, zipfile.ZipInfo]) -> None:
    with WheelFile(file) as wheel:
        for name, base in copied.items():
            if _facts(wheel.members.get(name)) != _facts(base):
                raise TamperedWheel(f"{name} in {wheel.path.name} is no copy of the one in the base wheel")
        with report.progress("check", wheel.total_size(), is_bytes=True) as show:
            wheel.verify(lambda name: None, show)


def _facts(info: zipfile.ZipInfo | None) -> tuple[int, ...]:
    return (info.CRC, info.file_size, info.compress_size, info.compress_type) if info else ()
