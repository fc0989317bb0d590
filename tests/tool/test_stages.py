"""On a terminal every stage has a spinner or a bar while it lasts, and its time when it ends."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workshop import DRIVE, Workshop

STAGES = ("base wheel", "verify", "patch", "compile", "graft", "check", "publish")


def _on_terminal(*words: object, environment: dict[str, str] | None = None) -> str:
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", "COLUMNS": "120", **(environment or {})}
    with subprocess.Popen(list(map(str, words)), stdin=theirs, stdout=theirs, stderr=theirs, env=settings) as program:
        os.close(theirs)
        said = b""
        while chunk := _read(ours):
            said += chunk
    os.close(ours)
    assert program.returncode == 0, said.decode()
    return said.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody has the other end any more
        return b""


def _plain(said: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).replace("\r", "\n")


def test_every_stage_of_a_build_says_its_time(workshop: Workshop) -> None:
    build = ("pytorch", "v2.13.0", "--base-wheel", workshop.base, "--output", workshop.output)
    environment = {"LMSBUILD_CACHE": str(workshop.cache)}
    said = _on_terminal(sys.executable, DRIVE, workshop.patches, "0", "-", *build, environment=environment)
    lines = [line.strip() for line in _plain(said).splitlines()]
    timed = [match[1] for line in lines if (match := re.fullmatch(r"([a-z ]+)  \d+\.\d s", line))]
    assert timed == list(STAGES)
    assert any(
        Path(line).suffix == ".whl" and Path(line).is_file() for line in lines
    )  # no spinner runs into the result


@pytest.mark.parametrize("inside", ["pass", "report.note('a note')", "report.progress('bar', 2).__enter__()(1)"])
def test_a_spinner_turns_while_a_stage_lasts(inside: str) -> None:
    """A bar takes its place, since only one of them can move."""
    program = f"""
from lmsbuild import report
import time
with report.stages():
    report.stage("one")
    {inside}
    time.sleep(0.3)
"""
    said = _on_terminal(sys.executable, "-c", program)
    assert re.search(r"one  \d+\.\d s\r?\n$", _plain(said).rstrip(" "))
    frames = {letter for letter in said if 0x2800 <= ord(letter) < 0x2900}  # those of the spinner, in braille
    assert len(frames) > 1 or "━" in said


def test_a_failure_ends_the_stage() -> None:
    program = """
from lmsbuild import report
try:
    with report.stages():
        report.stage("one")
        raise ValueError
except ValueError:
    report.failure("it failed")
"""
    lines = [line for line in _plain(_on_terminal(sys.executable, "-c", program)).splitlines() if line.strip()]
    assert re.fullmatch(r"one  \d+\.\d s", lines[-2].strip())
    assert lines[-1].strip() == "error: it failed"
