"""LMS's statistics in the logs of training libraries: torch.lms.callbacks with the real libraries."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest

import kept

PROGRAMS = Path(__file__).parent / "callbacks"
MIB = 1 << 20

# What these require comes along, except for torch, which is there: those that require it are installed without it.
WITH_WHAT_THEY_REQUIRE = ("transformers==5.23.0", "psutil==7.2.2")
ALONE = (
    "accelerate==1.15.0",
    "lightning==2.6.6",
    "pytorch-lightning==2.6.6",
    "lightning-utilities==0.15.3",
    "torchmetrics==1.9.0",
)


@pytest.fixture(scope="session")
def libraries(lms_python: Path) -> Path:
    """A folder for PYTHONPATH with the libraries, 200 MB."""
    return kept.packages("training-libraries", lms_python, [WITH_WHAT_THEY_REQUIRE, ("--no-deps", *ALONE)])


def run(python: Path, libraries: Path, program: str, *words: object) -> None:
    done = subprocess.run(
        [python, PROGRAMS / program, *map(str, words)],
        env={
            **os.environ,
            "PYTHONPATH": str(libraries),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{program} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def test_transformers(lms_python: Path, libraries: Path, tmp_path: Path) -> None:
    logs = {}
    for limit in (0, 8 * MIB):
        report = tmp_path / f"{limit}.json"
        run(lms_python, libraries, "train_transformers.py", limit, tmp_path / "output", report)
        logs[limit] = json.loads(report.read_text())
    stock, paged = logs[0]["seen"], logs[8 * MIB]["seen"]
    assert [log.get("loss") for log in stock] == [log.get("loss") for log in paged]
    assert not [name for log in stock for name in log if name.startswith("lms/")]
    assert len(paged) == 4  # three steps, and the summary
    for log in paged[:3]:
        assert log["lms/cpu/out.bytes"] > 0 and log["lms/cpu/in.bytes"] > 0 and log["lms/cpu/stall_ns"] > 0
        peak, over = log["lms/cpu/resident_bytes.peak"], log["lms/cpu/over_limit_bytes.peak"]
        assert 0 < peak <= 8 * MIB + over
    kept = [{name for name in log if name.startswith("lms/")} for log in logs[8 * MIB]["history"]]
    assert kept == [{name for name in log if name.startswith("lms/")} for log in paged] and len(kept[0]) == 5


@pytest.mark.parametrize("package", ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.release)])
def test_lightning(package: str, lms_python: Path, libraries: Path, tmp_path: Path) -> None:
    tables = {}
    for limit in (0, 4 * MIB):
        folder = tmp_path / str(limit)
        run(lms_python, libraries, "train_lightning.py", package, folder, limit)
        [file] = folder.rglob("metrics.csv")
        tables[limit] = list(csv.DictReader(file.read_text().splitlines()))
    stock, paged = tables[0], tables[4 * MIB]
    assert len(stock) == 3 and [row["loss"] for row in stock] == [row["loss"] for row in paged]
    assert not [name for name in stock[0] if name.startswith("lms/")]
    for row in paged:
        values = {name: float(value) for name, value in row.items() if name.startswith("lms/")}
        assert values["lms/cpu/out.bytes"] > 0 and values["lms/cpu/in.bytes"] > 0 and values["lms/cpu/stall_ns"] > 0
        assert values["lms/cpu/limit_bytes"] == 4 * MIB and 0 < values["lms/cpu/resident_bytes.peak"] <= 4 * MIB
    assert float(paged[2]["lms/cpu/in.bytes"]) < 60 * MIB  # of one step, not of all
