"""The examples for PyTorch, with the patched wheel, as README.md there says."""

from __future__ import annotations

import csv
import statistics
import subprocess
from pathlib import Path

import pytest

from example_programs import ROOT, TORCHVISION, commands, run, table

PROGRAM = "pytorch_many_model.py"
HOOKS = """
import csv, sys, torch
sys.path.insert(0, "docs/examples")
from lms_step_log import StepLog

torch.lms.enable("cpu", limit=1 << 20)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
steps, passes = StepLog(torch.lms, "cpu", "steps.csv"), StepLog(torch.lms, "cpu")
optimizer.register_step_post_hook(steps)
model.register_forward_hook(passes)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(256, 256)).sum().backward()
    optimizer.step()
steps.close()
with open("steps.csv", newline="") as file:
    written = list(csv.DictReader(file))
assert [int(row["step"]) for row in written] == [1, 2, 3] == [row["step"] for row in passes.rows]
assert sum(int(row["out.bytes"]) for row in written) > 0
assert written == [{name: str(value) for name, value in row.items()} for row in steps.rows]
"""


@pytest.fixture(scope="module")
def results(
    lms_python: Path, torchvision: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[tuple[list[str], subprocess.CompletedProcess[str]]]]:
    """The folder in which the README's commands ran, and what each printed."""
    folder = tmp_path_factory.mktemp("examples")
    ran = [(words, run(lms_python, words, folder, PYTHONPATH=str(torchvision))) for words in commands("sh", PROGRAM)]
    return folder, ran


def test_the_commands_of_the_readme(
    results: tuple[Path, list[tuple[list[str], subprocess.CompletedProcess[str]]]],
) -> None:
    folder, ran = results
    (_, limited), (_, stock), (_, logged) = ran
    with_lms, without, two = table(limited), table(stock), table(logged)
    for row, bare in zip(with_lms, without, strict=True):
        assert row["model"] == bare["model"] and row["last loss"] == bare["last loss"]
        assert float(row["peak resident MiB"]) <= 8 < float(row["total MiB"]) and float(row["moved MiB/step"]) > 0
        assert bare["moved MiB/step"] == "-"
    assert [row["batch"] for row in two] == ["4", "8"]
    with (folder / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["batch"], row["step"]) for row in rows] == [(b, str(s)) for b in "48" for s in range(1, 6)]
    assert sum(int(row["out.bytes"]) for row in rows) > 0
    with (folder / "averages.csv").open(newline="") as file:
        averages = list(csv.DictReader(file))
    assert [row["batch"] for row in averages] == ["4", "8"]
    for average in averages:
        later = [row for row in rows if row["batch"] == average["batch"]][1:]
        assert average["steps"] == "4" == str(len(later))
        for name in ("seconds", "out.bytes", "resident_bytes.peak"):
            assert float(average[name]) == pytest.approx(sum(float(row[name]) for row in later) / 4)
        pixels = int(average["batch"]) * 64 * 64 / 1e6
        assert float(average["megapixels/s"]) * float(average["seconds"]) == pytest.approx(pixels)
        median = statistics.median(float(row["seconds"]) for row in later)
        assert float(average["median megapixels/s"]) * median == pytest.approx(pixels)


def test_the_torchvision_that_the_readme_names() -> None:
    readme = (ROOT / "docs" / "examples" / "README.md").read_text()
    assert f"pip install {TORCHVISION}\n" in readme


@pytest.mark.release  # the README's commands name two models, too
def test_models_that_are_called_differently(lms_python: Path, torchvision: Path, tmp_path: Path) -> None:
    """One for segmentation, whose scores are in a dictionary; one that is made for a size of image."""
    words = [f"docs/examples/{PROGRAM}", "lraspp_mobilenet_v3_large", "vit_b_32"]
    words += ["--device", "cpu", "--image-size", "64", "--batch", "2", "--steps", "1", "--limit", "1G"]
    rows = table(run(lms_python, words, tmp_path, PYTHONPATH=str(torchvision)))
    assert [row["model"] for row in rows] == ["lraspp_mobilenet_v3_large", "vit_b_32"]


def test_unknown_models(lms_python: Path, torchvision: Path, tmp_path: Path) -> None:
    words = [f"docs/examples/{PROGRAM}", "squeezenet1_1", "raft_small", "nonsense", "--device", "cpu", "--no-lms"]
    result = run(lms_python, words, tmp_path, PYTHONPATH=str(torchvision))
    assert result.returncode == 2 and "torchvision: raft_small, nonsense" in result.stderr, result.stderr


def test_the_commands_for_gpus(lms_python: Path, torchvision: Path, tmp_path: Path) -> None:
    """Their models and options exist."""
    gpu = [words[1:] for words in commands("sh gpu", PROGRAM)]
    assert gpu
    program = "import sys; sys.path.insert(0, 'docs/examples'); import pytorch_many_model as p; "
    program += "parse = p.many_model.parser('', ('cpu', 'cuda')).parse_args; "
    program += f"assert all(p.known(name) for words in {gpu} for name in parse(words).models)"
    result = run(lms_python, ["-c", program], tmp_path, PYTHONPATH=str(torchvision))
    assert result.returncode == 0, result.stderr


def test_the_hooks(lms_python: Path, tmp_path: Path) -> None:
    result = run(lms_python, ["-c", HOOKS], tmp_path)
    assert result.returncode == 0, result.stderr
