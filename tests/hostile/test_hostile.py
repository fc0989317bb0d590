"""Hostile inputs of every class, and that the judge finds what breaks the promise. `try_all.py` tries more."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import Phase, strategies

import inputs
import running
import try_all
from lmsbuild import cli
from running import Case


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[inputs.Seeds]:
    folder = tmp_path_factory.mktemp("hostile")
    before = dict(os.environ)
    try_all.isolated(folder)
    (folder / "seeds").mkdir()
    yield inputs.prepare(folder / "seeds")
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    "times", [pytest.param(1, marks=pytest.mark.build), pytest.param(4, marks=pytest.mark.release)]
)
@pytest.mark.parametrize("kind", inputs.CLASSES)
def test_any_input_ends_with_a_catalogued_code(seeds: inputs.Seeds, tmp_path: Path, kind: str, times: int) -> None:
    outcomes, examples = set(), times * try_all.EXAMPLES[kind]
    tried = itertools.count()  # a number that fails is tried twice

    @hypothesis.settings(max_examples=examples, phases=[Phase.explicit, Phase.generate])
    @hypothesis.given(strategies.integers(0, 2**32))
    def try_one(number: int) -> None:
        verdict = try_all.attempt(seeds, kind, times, number, tmp_path / f"{number}-{next(tried)}")
        assert verdict.wrong == ""
        outcomes.add(verdict.outcome)

    try_one()
    assert len(outcomes) > 1 or examples < 4  # more of them are not all refused alike


def _traceback() -> None:
    raise ZeroDivisionError


def _unknown_code() -> None:
    sys.exit(99)


def _silence() -> None:
    sys.exit(7)


def _leftover() -> None:
    Path(".lmsbuild-abcdefgh").mkdir()


def _workspace_of_a_channel() -> None:
    Path(".lmsbuild-" + "0" * 32).touch()


def _temporary_file() -> None:
    tempfile.mkstemp()


def _process_of_its_own_session() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def _foreign_code() -> None:
    Path("code-ran").touch()


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_traceback, "exit code 1 is in no catalogue"),
        (_unknown_code, "exit code 99 is in no catalogue"),
        (_silence, "exit code 7 without a sentence"),
        (_leftover, "left behind: ['.lmsbuild-abcdefgh']"),
        (_workspace_of_a_channel, "left behind: ['.lmsbuild-000"),
        (_temporary_file, "left behind: ['temporary/tmp"),
        (_process_of_its_own_session, "left running: sleep"),
        (_foreign_code, "code of the input ran"),
        (_killed, "exit code -9 is in no catalogue"),
    ],
)
def test_what_breaks_the_promise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], said: str
) -> None:
    monkeypatch.setattr(cli, "main", act)
    verdict = running.judge(Case([["list"]], forbidden=tmp_path / "code-ran"), tmp_path, running.names(tmp_path))
    assert said in verdict.wrong


def _print_without_end() -> None:
    while True:
        print("more")


def _start_what_hangs() -> None:
    subprocess.run(["setsid", "sleep", "600"], check=True)


@pytest.mark.parametrize("act", [lambda: time.sleep(600), _print_without_end, _start_what_hangs])
def test_a_hang_is_found_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    monkeypatch.setattr(cli, "main", act)
    monkeypatch.setattr(running, "SECONDS", 1)
    before = running._children()
    assert "no end after 1 seconds" in running.judge(Case([["list"]]), tmp_path, frozenset()).wrong
    assert running._children() == before


def test_an_interpreter_of_its_own(tmp_path: Path) -> None:
    """It reads the environment as it starts."""
    case = Case([["--version"]], environment={"PYTHONHOME": "/none"}, fresh=True)
    assert "exit code 1 is in no catalogue" in running.judge(case, tmp_path, frozenset()).wrong


def test_output_that_a_second_reader_refuses_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", _nothing)
    for accept, wrong in ((_traceback, "a second reader refuses"), (_nothing, "")):
        folder = tmp_path / accept.__name__
        folder.mkdir()
        verdict = running.judge(Case([["list"]], accept=accept), folder, frozenset())
        assert verdict.outcome == "success" and verdict.wrong[:23] == wrong
