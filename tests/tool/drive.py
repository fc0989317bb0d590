"""Runs the tool on other patches than its own, and ends it by a signal at a moment of the caller's choice.

Usage: drive.py PATCHES SIGNAL MOMENT ARGUMENT...

MOMENT is the name of a stage, which is struck as it begins; "member:N", struck after N members of the new wheel are
written; or "-" for never. The signal goes to this process alone, as `kill` sends it. Nothing waits for the network.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmsbuild import cli, paths, report
from lmsbuild.fetch import patience
from lmsbuild.matrix import build_row
from lmsbuild.wheel import archive


def main(words: Sequence[str]) -> None:
    patches, number, moment, *arguments = words
    paths.patches_folder = lambda: Path(patches)  # type: ignore[assignment]
    patience.pause = lambda seconds: None
    build_row.TOOL = (sys.executable, __file__, patches, "0", "-")  # rows are built with the same patches
    say, copy, written = report.stage, archive.ArchiveWriter.copy, [0]

    def strike() -> None:
        os.kill(os.getpid(), int(number))

    def stage(name: str) -> None:
        say(name)
        if name == moment:
            strike()

    def counted(self: archive.ArchiveWriter, *words: Any) -> None:
        copy(self, *words)
        written[0] += 1
        if moment == f"member:{written[0]}":
            strike()

    report.stage = stage  # type: ignore[assignment]
    archive.ArchiveWriter.copy = counted  # type: ignore[method-assign]
    sys.argv = ["lmsbuild", *arguments]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
