"""The examples for TensorFlow, with the patched wheels, as README.md there says: Keras 3, and Keras 2."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from example_programs import commands, run, table

PROGRAM = "tensorflow_many_model.py"
KERAS_2, KERAS_3 = "v2.14.1", "v2.21.0"


@pytest.fixture(scope="module")
def results(
    tensorflow_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[subprocess.CompletedProcess[str]]]:
    """The folder in which the README's commands ran, and what each printed."""
    folder = tmp_path_factory.mktemp("examples")
    return folder, [run(tensorflow_python(KERAS_3), words, folder) for words in commands("sh", PROGRAM)]


def test_the_commands_of_the_readme(results: tuple[Path, list[subprocess.CompletedProcess[str]]]) -> None:
    folder, (limited, stock) = results
    (with_lms,), (without,) = table(limited), table(stock)
    assert with_lms["last loss"] == without["last loss"]
    assert float(with_lms["peak resident MiB"]) <= 32 < float(with_lms["total MiB"])
    assert float(with_lms["moved MiB/step"]) > 0 and without["moved MiB/step"] == "-"
    with (folder / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert all(int(row["out.bytes"]) > 0 for row in rows)


@pytest.mark.release  # tests/e2e/tensorflow has Keras 2
def test_keras_2(tensorflow_python: Callable[[str], Path], tmp_path: Path) -> None:
    words = [f"docs/examples/{PROGRAM}", "MobileNet", "--device", "cpu", "--image-size", "32", "--batch", "4", "2"]
    words += ["--steps", "2", "--limit", "16M", "--policy", "lru", "--store", "."]
    rows = table(run(tensorflow_python(KERAS_2), words, tmp_path))
    assert [row["batch"] for row in rows] == ["4", "2"]
    assert all(float(row["moved MiB/step"]) > 0 for row in rows)


def test_what_does_not_fit(tensorflow_python: Callable[[str], Path], tmp_path: Path) -> None:
    """Without LMS, on the CPU's pooling allocator: its own error, a row that says so, and an exit code."""
    words = [
        f"docs/examples/{PROGRAM}",
        "MobileNet",
        "--device",
        "cpu",
        "--image-size",
        "32",
        "--steps",
        "2",
        "--no-lms",
    ]
    pool = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "16", "TF_ENABLE_ONEDNN_OPTS": "0"}
    result = run(tensorflow_python(KERAS_2), words, tmp_path, **pool)
    assert result.returncode == 3 and "OOM when allocating" in result.stderr, result.stderr
    assert "| out of memory |" in result.stdout


def test_unknown_models(tensorflow_python: Callable[[str], Path], tmp_path: Path) -> None:
    words = [f"docs/examples/{PROGRAM}", "MobileNet", "resnet50", "Model", "--device", "cpu", "--no-lms"]
    result = run(tensorflow_python(KERAS_3), words, tmp_path)
    assert result.returncode == 2 and "applications: resnet50, Model" in result.stderr, result.stderr


def test_the_commands_for_gpus(tensorflow_python: Callable[[str], Path], tmp_path: Path) -> None:
    """Their models and options exist, and without a GPU the program says so."""
    gpu = [words[1:] for words in commands("sh gpu", PROGRAM)]
    assert gpu
    program = "import sys; sys.path.insert(0, 'docs/examples'); import tensorflow_many_model as t; "
    program += "parse = t.many_model.parser('', ('cpu', 'gpu')).parse_args; "
    program += f"assert all(t.known(name) for words in {gpu} for name in parse(words).models); "
    program += "sys.argv[1:] = ['MobileNet', '--device', 'gpu']; t.main()"
    result = run(tensorflow_python(KERAS_3), ["-c", program], tmp_path)
    assert result.returncode == 2 and "finds no GPU" in result.stderr, result.stderr
