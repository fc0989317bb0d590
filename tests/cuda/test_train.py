"""Trains the programs under train_programs/ with a grafted CUDA wheel on the simulated CUDA, whose kernels are the CPU's
(operators/stand_in.h): whole training programs under memory pressure, equal to the bit to the same on the CPU.

LMS_TEST_SEEDS sets how many seeds of the schedule each program is run with for each limit and policy: two with
LMS_TEST_FULL=1, and otherwise one.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "train_programs"
UPSTREAM = Path(__file__).parents[2] / "patches" / "src" / "pytorch" / "test" / "test_lms.py"


@pytest.fixture(scope="session")
def outcomes(cuda_python: Path, train_environment: dict[str, str], request: pytest.FixtureRequest) -> Outcomes:
    return Outcomes(
        request.session.items, "test_train", cuda_python, train_environment, Path(train_environment["TMPDIR"])
    )


@pytest.mark.parametrize(("module", "name"), parameters(PROGRAMS))
def test_train(module: str, name: str, outcomes: Outcomes) -> None:
    outcome = outcomes.of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"


def test_train_as_the_patch_tests_itself(cuda_python: Path, train_environment: dict[str, str]) -> None:
    """The suite for CUDA that the patch adds to PyTorch's own, all of it."""
    words = [str(cuda_python), str(UPSTREAM), "TestLargeModelSupportCuda"]
    done = subprocess.run(words, capture_output=True, text=True, env=train_environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    functions = UPSTREAM.read_text().partition("class TestLargeModelSupportCuda")[2].count("    def test_")
    assert ran is not None and int(ran[1]) > functions > 0 and "skipped" not in done.stderr, done.stderr
