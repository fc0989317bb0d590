"""Reads the finished wheel back from the disk, as an installer would, before anybody else sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import report
from lmsbuild.errors import DamagedWheel, NoSuchFile, TamperedWheel, UnsafeMember
from lmsbuild.wheel import archive
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile
from lmsbuild.workspace import publish


@dataclass(frozen=True)
class Copied:
    """What the finished wheel has of its base, of which every member has been verified."""

    base: WheelFile
    names: Mapping[str, str]  # of the members in the base wheel, by their names in the finished one
    rows: Mapping[str, tuple[str, str]]  # their hashes and sizes, by their names in the base wheel


def check_and_publish(finished: Path, copied: Copied, target: Path) -> None:
    """Checks new members against RECORD, and copies, which it does not unpack again, byte by byte against the base wheel; then
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


def _check(file: InputFile, copied: Copied) -> None:
    with WheelFile(file) as wheel:
        wheel.verify(lambda name: None, lambda done: None, known=copied.names.keys())
        listed = wheel.listed()
        with (
            wheel.stream() as stream,
            copied.base.stream() as base,
            report.progress("check", len(copied.names)) as show,
        ):
            for done, (name, original) in enumerate(copied.names.items(), start=1):
                info, known = wheel.members.get(name), copied.base.members[original]
                if (
                    info is None
                    or listed.get(name) != copied.rows.get(original)
                    or not archive.is_copy(stream, info, base, known)
                ):
                    raise TamperedWheel(f"{name} in {wheel.path.name} is no copy of the one in the base wheel")
                show(done)
