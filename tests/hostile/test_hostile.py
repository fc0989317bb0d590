"""Hostile inputs of every class, the same in every run; and that the judge finds what breaks the promise. `try_all.py` tries more."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("kind", inputs.CLASSES)
def test_any_input_ends_with_a_catalogued_code(seeds: inputs.Seeds, tmp_path: Path, kind: str) -> None:
    verdicts = [try_all.attempt(seeds, kind, 1, number, tmp_path / str(number)) for number in range(try_all.EXAMPLES)]
    assert [verdict.wrong for verdict in verdicts if verdict.wrong] == []
    assert len({verdict.outcome for verdict in verdicts}) > 1  # they are not all refused alike


def _traceback() -> None:
    raise ZeroDivisionError


def _unknown_code() -> None:
    sys.exit(99)


def _silence() -> None:
    sys.exit(7)


def _leftover() -> None:
    Path(".lmsbuild-abcdefgh").mkdir()


def _foreign_code() -> None:
    Path("code-ran").touch()


def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_traceback, "exit code 1 is in no catalogue"),
        (_unknown_code, "exit code 99 is in no catalogue"),
        (_silence, "exit code 7 without a sentence"),
        (_leftover, "left behind"),
        (_foreign_code, "code of the input ran"),
        (os.abort, "exit code -6 is in no catalogue"),
    ],
)
def test_what_breaks_the_promise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], said: str
) -> None:
    monkeypatch.setattr(cli, "main", act)
    verdict = running.judge(Case([["list"]], forbidden=tmp_path / "code-ran"), tmp_path, running.names(tmp_path))
    assert said in verdict.wrong


def test_a_hang_is_found_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", lambda: time.sleep(600))
    monkeypatch.setattr(running, "SECONDS", 1)
    assert "no end after 1 seconds" in running.judge(Case([["list"]]), tmp_path, frozenset()).wrong


def test_output_that_a_second_reader_refuses_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", _nothing)
    verdict = running.judge(Case([["list"]], accept=_traceback), tmp_path, frozenset())
    assert verdict.wrong.startswith("a second reader refuses")
    assert running.judge(Case([["list"]], accept=_nothing), tmp_path, frozenset()) == running.Verdict("success")
