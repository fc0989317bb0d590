"""Runs every check under programs/ with the interpreter that has the built wheel.

To run one alone: ``python programs/run_checks.py checks_handout check_raw_pointers`` with that interpreter.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def outcomes(lms_python: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    scratch = tmp_path_factory.mktemp("checks")
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TMPDIR": str(scratch),
    }
    return Outcomes(request.session.items, "test_check", lms_python, environment, scratch)


@pytest.mark.parametrize(("module", "name"), parameters(PROGRAMS))
def test_check(module: str, name: str, outcomes: Outcomes) -> None:
    outcome = outcomes.of(module, name)
    if outcome["status"] == "skipped":
        pytest.skip(outcome["text"].strip())
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
