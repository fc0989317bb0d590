"""The runner of the checks in tests/e2e and tests/cuda keeps what a check does to itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from checks import RUNNER

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
    for names in ([], ["check_second"]):
        command = [sys.executable, RUNNER, "checks_own", *names]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outcomes = {outcome["check"]: outcome for outcome in map(json.loads, result.stdout.splitlines())}
        assert sorted(outcomes) == (names or ["check_first", "check_second"])
        for outcome in outcomes.values():
            assert outcome["status"] == "passed", outcome["text"]
