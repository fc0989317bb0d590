"""Adds an SBOM to a wheel that another program built."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from lmsbuild import source_date
from lmsbuild.sbom import sbom
from lmsbuild.sbom.part import Part
from lmsbuild.wheel.archive import ArchiveWriter
from lmsbuild.wheel.target import Target
from lmsbuild.wheel.wheel import WheelFile, record_hash, record_text


def add(built: Path, target: Path, interpreter: Target, parts: Sequence[Part]) -> None:
    """Writes the wheel `built` to `target`, with an SBOM that names these parts; its other files are copied as they are.

    Raises DamagedWheel.
    """
    with WheelFile(built) as wheel, built.open("rb") as stream, target.open("wb") as sink:
        name, record_name = f"{wheel.dist_info}/{sbom.MEMBER}", f"{wheel.dist_info}/RECORD"
        seconds = source_date.of(wheel.members[record_name].date_time)
        text = sbom.of_wheel(built.name, interpreter, parts, seconds)
        record = {**wheel.record(), name: (record_hash(text), str(len(text)))}
        rows = [(member, *row) for member, row in record.items() if member != record_name]
        writer = ArchiveWriter(sink, source_date.archive_date(seconds))
        for member, info in wheel.members.items():
            if member not in (name, record_name):
                writer.copy(stream, info, member)
        writer.add(name, text, 0o644)
        mode = stat.S_IMODE(wheel.members[record_name].external_attr >> 16) or 0o644
        writer.add(record_name, record_text([*rows, (record_name, "", "")]), mode)
        writer.finish()
