"""`lmsbuild try`: with the real wheel, and what it makes of runs that differ or end early."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import synthetic
from lmsbuild import command, paths
from lmsbuild.errors import DamagedWheel, MissingProgram, ResultsDiffer, TrialFailed, WrongPlatform, WrongVersion
from lmsbuild.trial import trial
from synthetic import Member
from workshop import Workshop

pytestmark = pytest.mark.build  # starts interpreters and trainings

STATISTICS = '{"allocated_bytes.peak": 3000, "resident_bytes.peak": 1000, "over_limit_bytes.peak": 0, "out.bytes": 5, "in.bytes": 6}'


def test_a_model_three_times_its_limit_trains_to_the_same_numbers(
    built_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    text = trial.run(built_wheel, tmp_path / "pictures", "lstm", 3)
    assert list(temporary.iterdir()) == []  # not even what PyTorch leaves
    assert "losses, parameters and gradients: equal to the bit" in text
    sizes = re.search(r"lstm: 3 steps, ([\d.]+) MiB of tensors in ([\d.]+) MiB", text)
    assert sizes
    whole, limit = float(sizes[1]), float(sizes[2])
    assert whole == pytest.approx(3 * limit, abs=0.2)
    moved = re.search(r"copied out ([\d.]+) MiB, in ([\d.]+) MiB", text)
    assert moved
    assert min(float(moved[1]), float(moved[2])) > whole - limit
    picture = (tmp_path / "pictures/lms-lstm.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">2I", picture[16:24])
    assert min(width, height) > 400
    drawing = (tmp_path / "pictures/lms-lstm.svg").read_text()
    assert len(drawing) < 60_000
    assert "without Large Model Support" in drawing and f"limit: {limit:.0f} MiB" in drawing


@pytest.mark.parametrize(
    ("version", "packages"),
    [
        ("2.1.4", {"numpy<1.20", "numpy<2", "protobuf<3.21"}),
        ("2.6.1", {"numpy<2", "protobuf<3.21", "keras<2.7", "tensorflow-estimator<2.7"}),
        ("2.9.3", {"numpy<2", "protobuf<3.21"}),
        ("2.10.0", {"numpy<2"}),
        ("2.12.0", set()),
    ],
)
def test_what_the_wheels_of_a_release_do_not_say_that_they_need(version: str, packages: set[str]) -> None:
    assert set(trial.also_needs("tensorflow", version)) == packages


def _patched(workshop: Workshop, requires: str = "") -> Path:
    """The stand-in as a wheel that says it is patched, with a line more in its metadata."""
    old, new = "2.13.0+cpu", "2.13.0+cpu.lms1"
    version = f"Version: {new}\n{requires}".encode()
    with zipfile.ZipFile(workshop.base) as base:
        files = {
            name.replace(old, new): Member(base.read(name).replace(f"Version: {old}\n".encode(), version))
            for name in base.namelist()
            if not name.endswith("/RECORD")
        }
    return synthetic.write_wheel(workshop.folder / synthetic.wheel_name(new), files)


def _pretend(monkeypatch: pytest.MonkeyPatch, *outputs: str, code: int = 0) -> None:
    """The trainings print `outputs`, one after the other."""
    text = "".join(
        f'{{"limit": {limit}}}\n{output}' for limit, output in zip(("null", 1 << 50, 1000), outputs, strict=False)
    )

    def run(arguments: object, **options: object) -> command.Finished:
        return command.Finished(("python",), code, text.encode(), b"Traceback\nRuntimeError: out of memory\n")

    monkeypatch.setattr(trial, "_examine", lambda interpreter: (synthetic.ABI, "3"))
    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(trial, "_environment", lambda *words: Path("python"))


def _output(loss: float = 1.5, digest: str = "d", statistics: str = STATISTICS) -> str:
    lines = [f'{{"step": 1, "loss": "{loss.hex()}", "seconds": 0.5}}', '{"sample": [0.1, 3000, 1000]}']
    return (
        "\n".join(
            [*lines, f'{{"statistics": {statistics}, "digest": "{digest}", "hashed": "tensors", "seconds": 0.5}}']
        )
        + "\n"
    )


@pytest.mark.parametrize("change", [{"loss": 1.5000000000000002}, {"digest": "e"}])
def test_the_smallest_difference_is_a_failure(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    _pretend(monkeypatch, _output(statistics="{}"), _output(), _output(**change))  # type: ignore[arg-type]
    with pytest.raises(ResultsDiffer, match="(?s)report it.*DIFFERENT"):
        trial.run(_patched(workshop), workshop.output, "lstm", 1)


def test_equal_runs_are_reported(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, _output(statistics="{}"), _output(), _output())
    text = trial.run(_patched(workshop), workshop.output, "lstm", 1)
    assert "  losses, tensors: equal to the bit\n" in text
    assert "1.5 -> 1.5" in text


def test_each_framework_says_what_its_digest_is_of() -> None:
    """TensorFlow's has no gradients: a tape gives them, and nothing keeps them."""
    for framework, hashed in (("pytorch", "parameters and gradients"), ("tensorflow", "weights and the optimizer's")):
        assert f'\nHASHED = "{hashed}' in paths.trial_backend(framework).read_text()


def test_training_that_ends_early_is_said(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, '{"step": 1, "loss": "0x1p+0"}\n', code=1)
    with pytest.raises(TrialFailed, match="exit code 1: RuntimeError: out of memory"):
        trial.run(_patched(workshop), workshop.output, "lstm", 1)


@pytest.mark.parametrize(
    "outputs", [(), (_output(),), (_output(), _output(), "")], ids=["none", "one", "the last empty"]
)
def test_trainings_without_results_are_said(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, outputs: tuple[str, ...]
) -> None:
    _pretend(monkeypatch, *outputs)
    with pytest.raises(TrialFailed, match="without its results"):
        trial.run(_patched(workshop), workshop.output, "lstm", 1)


PROGRAM = """
import json, os, signal

HASHED = "nothing"
def load(): print(json.dumps({"loaded": os.getpid()}), flush=True)
def prepare(): pass
def enable(limit, min_size): print(json.dumps({"enabled": limit, "process": os.getpid()}))
def disable(): pass
def statistics(): return {"allocated_bytes.peak": 900, "allocated_bytes.current": 1, "resident_bytes.current": 1}
def digest(trainer): return "d"
"""
MODELS = """
import os, signal

class Trainer:
    def step(self):
        %s
        return 1.5

def make(name): return Trainer()
"""


def _trained(folder: Path, step: str, *limits: str) -> subprocess.CompletedProcess[str]:
    """What training.py does with a stand-in for the framework."""
    shutil.copy(paths.trial_program(), folder / "training.py")
    (folder / "backend.py").write_text(PROGRAM)
    (folder / "models.py").write_text(MODELS % step)
    words = [sys.executable, folder / "training.py", "lstm", "2", *limits]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_each_training_is_a_process_and_a_limit_may_be_a_part_of_the_peak(tmp_path: Path) -> None:
    done = _trained(tmp_path, "pass", "none", "1000", "1/3")
    entries = trial.read_entries(done.stdout.splitlines())
    assert [entry["limit"] for entry in entries if "limit" in entry] == [None, 1000, 300]
    assert [entry["enabled"] for entry in entries if "enabled" in entry] == [1000, 300]
    processes = [next(iter(entry.values())) for entry in entries if "loaded" in entry]
    processes += [entry["process"] for entry in entries if "enabled" in entry]
    assert len(set(processes)) == 3
    assert [len(each.losses) for each in trial.read_trainings(done.stdout, 3)] == [2, 2, 2]


def test_a_training_that_fails_is_the_last(tmp_path: Path) -> None:
    done = _trained(tmp_path, "raise ValueError('no loss')", "none", "1000")
    assert done.returncode == 1 and done.stderr.endswith("ValueError: no loss\n")
    assert done.stdout.count('"limit"') == 1
    assert _trained(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", "none", "1000").returncode == -9


def test_a_wheel_for_another_interpreter_is_refused(workshop: Workshop) -> None:
    other = workshop.base.rename(workshop.folder / synthetic.wheel_name("2.13.0+cpu.lms1", abi="cp39"))
    with pytest.raises(WrongPlatform, match="cp39"):
        trial.run(other, workshop.output, "lstm", 1)


def test_a_wheel_that_is_not_patched_is_refused(workshop: Workshop) -> None:
    with pytest.raises(WrongVersion, match="no patched wheel"):
        trial.run(workshop.base, workshop.output, "lstm", 1)


def test_an_installation_that_fails_is_said(workshop: Workshop) -> None:
    with pytest.raises(TrialFailed, match="pip cannot install torch"):
        trial.run(_patched(workshop, "Requires-Python: <3\n"), workshop.output, "lstm", 1)


def test_a_wheel_that_is_not_what_its_record_says_is_not_installed(workshop: Workshop) -> None:
    wheel = _patched(workshop)
    whole = wheel.read_bytes()
    workshop.cache.mkdir()
    copy = trial._checked(wheel, workshop.cache)
    wheel.write_bytes(whole[:1000])
    assert copy.read_bytes() == whole
    with pytest.raises(DamagedWheel, match="truncated"):
        trial.run(wheel, workshop.output, "lstm", 1)


def test_another_interpreter_has_to_be_one(workshop: Workshop) -> None:
    wheel = _patched(workshop)
    with pytest.raises(MissingProgram, match="cannot run nowhere"):
        trial.run(wheel, workshop.output, "lstm", 1, Path("nowhere"))
    with pytest.raises(MissingProgram, match="is no Python interpreter"):
        trial.run(wheel, workshop.output, "lstm", 1, Path("/bin/false"))


def test_an_environment_that_is_kept_is_used_again(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    run, words = command.run, []

    def seen(arguments: list[object], **options: object) -> command.Finished:
        words.append([str(word) for word in arguments])
        # Nothing is installed: the stand-in has no model to train.
        return run(["true"]) if "pip" in words[-1] else run(arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "run", seen)
    monkeypatch.setattr(
        trial, "_train", lambda *words: [trial.read_training(trial.read_entries(_output().splitlines()))] * 3
    )
    kept = workshop.folder / "kept"
    wheel = _patched(workshop)
    for _ in range(2):
        assert "memory over time" not in trial.run(wheel, None, "lstm", 1, environment=kept)
    assert len([line for line in words if "venv" in line]) == 1
    assert len([line for line in words if "pip" in line and any(word.endswith(f"/{wheel.name}") for word in line)]) == 2
    assert (kept / "bin/python").exists()
