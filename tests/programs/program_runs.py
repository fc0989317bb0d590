"""Starts the programs of this folder: what programs/run_program.py finds of one, by an interpreter that has the libraries."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if "\ndef run(rank: int)" in path.read_text())


def outcomes(python: str | Path, name: str, runs: Iterable[str]) -> list[dict[str, Any]]:
    """What became of each run. Raises RuntimeError when the program cannot be run at all."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **clean,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": folder,
            "TMPDIR": folder,
        }
        words = [python, PROGRAMS / "run_program.py", name, *runs]
        done = subprocess.run(words, capture_output=True, env=environment, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} ended with status {done.returncode}:\n{done.stderr[-6000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
