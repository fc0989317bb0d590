"""What a worker of the tests' cluster loads before it works (`dask worker --preload`): other patches, and a note of every row.

LMS_TEST_PATCHES has the patches, LMS_TEST_RUNS is a file that gets a line for each row that is begun.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lmsbuild import paths
from lmsbuild.matrix import build_row


def dask_setup(worker: object) -> None:
    patches, build = os.environ["LMS_TEST_PATCHES"], build_row.run

    def run(job: build_row.Job) -> build_row.Outcome:
        with Path(os.environ["LMS_TEST_RUNS"]).open("a") as file:
            file.write(f"{job.row.name}\n")
        return build(job)

    paths.patches_folder = lambda: Path(patches)  # type: ignore[assignment]
    build_row.TOOL = (sys.executable, os.environ["LMS_TEST_DRIVE"], patches, "0", "-")
    build_row.run = run  # by whose name the client asks for it
