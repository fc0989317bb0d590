"""The runner of the checks in tests/e2e and tests/cuda keeps what a check does to itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks import RUNNER, Outcomes

MODULE = """
import os

imported = os.getpid()

def check_first():
    assert os.getpid() == imported, "imported before the fork"

def check_second():
    check_first()

def helper():
    raise AssertionError("no check")
"""


def test_a_module_is_imported_by_each_check_alone(tmp_path: Path) -> None:
    (tmp_path / "checks_own.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LMS_TEST_FRAMEWORK": "json"}
    every = ["check_first", "check_second"]
    for words, given, names in (
        (["checks_own"], "", every),
        (["checks_own", "check_second"], "", every[1:]),
        ([], "checks_own check_first\nchecks_own check_second\n", every),
    ):
        command = [sys.executable, RUNNER, *words]
        result = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=True)
        outcomes = {outcome["check"]: outcome for outcome in map(json.loads, result.stdout.splitlines())}
        assert sorted(outcomes) == names
        for outcome in outcomes.values():
            assert outcome["status"] == "passed", outcome["text"]


DIES = """
import os, signal, time

def check_ends_the_runner():
    while not os.path.exists("go"):
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGKILL)
"""


def test_outcomes_are_known_when_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "checks_own.py").write_text(MODULE)
    (tmp_path / "checks_dies.py").write_text(DIES)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LMS_TEST_FRAMEWORK": "json"}
    outcomes = Outcomes([], "test_none", Path(sys.executable), environment, tmp_path)
    own, dies = ("checks_own", "check_first"), ("checks_dies", "check_ends_the_runner")
    outcomes._selected = {False: [own, ("checks_own", "check_second"), dies], True: [own]}
    assert outcomes.of("checks_own", "check_second")["status"] == "passed"
    assert outcomes.of(*own)["status"] == "passed"
    (tmp_path / "go").touch()
    with pytest.raises(RuntimeError, match="checks_dies ended with status -9 without check_ends_the_runner"):
        outcomes.of(*dies)
