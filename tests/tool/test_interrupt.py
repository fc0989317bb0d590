"""Ctrl-C, termination and sudden death at every stage, and several runs at once: never half a wheel."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmsbuild.wheel.wheel import WheelFile
from workshop import DRIVE, Workshop

MOMENTS = ["base wheel", "verify", "patch", "compile", "graft", "member:1", "member:4", "publish"]


def _wheels(workshop: Workshop) -> list[Path]:
    return sorted(workshop.output.glob("*.whl")) if workshop.output.exists() else []


def _leftovers(workshop: Workshop) -> list[str]:
    return [path.name for path in workshop.output.glob("*") if path.suffix != ".whl"]


def _temporary_names(output: Path) -> set[str]:
    return {path.name for path in output.iterdir() if path.name.startswith(".lmsbuild-")}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(workshop: Workshop, number: signal.Signals, moment: str) -> None:
    done = workshop.build(signal=number, moment=moment)
    assert done.returncode == 128 + number, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr
    assert _wheels(workshop) == []
    assert _leftovers(workshop) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_after_sudden_death_the_next_run_cleans_up(workshop: Workshop, moment: str) -> None:
    whole = Path(workshop.build().stdout.strip())
    expected = whole.read_bytes()
    whole.unlink()
    done = workshop.build(signal=signal.SIGKILL, moment=moment)
    assert done.returncode == -signal.SIGKILL
    assert _wheels(workshop) == []
    assert all(name.startswith(".lmsbuild-") for name in _leftovers(workshop))
    assert workshop.build().returncode == 0
    assert _leftovers(workshop) == []
    assert whole.read_bytes() == expected


def test_sudden_death_leaves_the_older_wheel_whole(workshop: Workshop) -> None:
    made = Path(workshop.build().stdout.strip())
    expected = made.read_bytes()
    workshop.build(signal=signal.SIGKILL, moment="member:4")
    assert made.read_bytes() == expected
    with WheelFile(made) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_an_interruption_while_the_tool_is_loaded() -> None:
    """It takes a second in which nothing is there yet that could be cleaned up."""
    program = """import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "lmsbuild.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
runpy.run_module("lmsbuild", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "list"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_compilers_die_with_the_run(workshop: Workshop) -> None:
    """A compiler that never ends, with a child of its own, is gone when Ctrl-C has ended the tool."""
    marks = workshop.folder / "marks"
    marks.mkdir()
    compiler = workshop.folder / "slow-compiler"
    compiler.write_text(f'#!/bin/sh\nmktemp\nsleep 600 &\necho $! > "{marks}/$$"\nwait\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    temporary = workshop.folder / "temporary"
    temporary.mkdir()
    words = ["pytorch", "v2.13.0", "--base-wheel", str(workshop.base), "--output", str(workshop.output)]
    process = subprocess.Popen(
        [sys.executable, DRIVE, workshop.patches, "0", "-", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "CXX": str(compiler),
            "LMSBUILD_CACHE": str(workshop.cache),
            "TMPDIR": str(temporary),
        },
        text=True,
    )
    with process:
        _wait_for(lambda: len(list(marks.iterdir())) == min(2, os.cpu_count() or 1))
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    started = [int(mark.name) for mark in marks.iterdir()] + [int(mark.read_text()) for mark in marks.iterdir()]
    _wait_for(lambda: not any(_runs(number) for number in started))
    assert (_leftovers(workshop), list(temporary.iterdir())) == ([], [])


def test_runs_at_once_into_one_folder_all_succeed(workshop: Workshop) -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda number: workshop.build(), range(4)))
    assert [done.returncode for done in runs] == [0] * 4, [done.stderr for done in runs]
    assert len({done.stdout for done in runs}) == 1
    assert _leftovers(workshop) == []
    with WheelFile(Path(runs[0].stdout.strip())) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_a_folder_is_never_seen_unlocked(tmp_path: Path) -> None:
    """Processes that begin at the same moments take each other's folders for leftovers if a lock has its name before it is held."""
    program = """
import sys
from pathlib import Path
from lmsbuild.workspace import workspace
for turn in range(500):
    with workspace(Path(sys.argv[1])) as folder:
        (folder / "work").touch()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [run.communicate(timeout=100)[1] for run in runs]
    assert ([run.returncode for run in runs], errors) == ([0] * 4, [""] * 4)
    assert list(tmp_path.iterdir()) == []


def test_a_run_does_not_remove_the_folder_of_one_that_works(workshop: Workshop) -> None:
    compiler = workshop.folder / "waiting-compiler"
    gate = workshop.folder / "gate"
    compiler.write_text(f'#!/bin/sh\nwhile [ ! -e "{gate}" ]; do sleep 0.05; done\nexec g++ "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(workshop.build, environment={"CXX": str(compiler)})
        _wait_for(lambda: workshop.output.exists() and any(_temporary_names(workshop.output)))
        before = _temporary_names(workshop.output)
        assert workshop.build().returncode == 0
        assert _temporary_names(workshop.output) == before
        gate.touch()
        assert slow.result().returncode == 0
    assert _leftovers(workshop) == []


def _runs(number: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except FileNotFoundError:
        return False


def _wait_for(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
