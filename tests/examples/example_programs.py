"""The commands in docs/examples/README.md: what they are, what they need, and how a test runs them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCHVISION = "torchvision==0.28.0"  # the release for torch 2.13.0


def commands(kind: str, program: str) -> list[list[str]]:
    """The words, after ``python``, of the commands for a program in blocks of a kind: ``sh`` or ``sh gpu``."""
    text = (ROOT / "docs" / "examples" / "README.md").read_text()
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    return [words[1:] for words in lines if words[:2] == ["python", f"docs/examples/{program}"]]


def run(python: Path, words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in `folder`, into which the examples are copied."""
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples", dirs_exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS")}
    variables = {**kept, **threads, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [python, *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
    )


def table(result: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """The rows of the table that a program printed."""
    assert result.returncode == 0, result.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.stdout.splitlines()]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
