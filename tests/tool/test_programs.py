"""What programs beside the tool write down of what they did: of those that need what a test does not have."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_in_the_results_of_tensorflow_repeats_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "ci/gpu")
    program = importlib.import_module("run_tensorflow")
    words = ["--out", "/some/where/results", "--case", "contents", "--case", "lstm", "--scale", "0.5", "--simulated"]
    said = program.command(program.parse([*words, "--python", "/some/where/python"]))
    assert said == ("python ci/gpu/run_tensorflow.py --out results --case contents --case lstm --scale 0.5 --simulated")
    assert program.command(program.parse(words[:2])) == "python ci/gpu/run_tensorflow.py --out results"


def test_the_ratio_where_stock_trains_no_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    program = importlib.import_module("keras_batch")
    sizes = {
        ("lstm", True): (0, "OOM"),
        ("lstm", False): (6, "100"),
        ("unet3d", True): (2, ""),
        ("unet3d", False): (5, "9"),
    }
    monkeypatch.setattr(program, "largest", lambda name, limit, min_size, most: sizes[name, min_size is None])
    monkeypatch.setattr(sys, "argv", ["keras_batch.py", "lstm", "unet3d"])
    program.main()
    assert capsys.readouterr().out.splitlines()[2:] == ["| lstm | 0 | 6 | - | 100 |", "| unet3d | 2 | 5 | 2.5 | 9 |"]
