"""Trains the programs under train_programs/ with a grafted CUDA wheel on the simulated CUDA, whose kernels are the CPU's
(operators/stand_in.h): whole training programs under memory pressure, equal to the bit to the same on the CPU.

LMS_TEST_SEEDS sets how many seeds of the schedule each program is run with for each limit and policy; without it, it is one.
What runs is a sample; before a release it is all of them, with two seeds.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import mutated
from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "train_programs"
UPSTREAM = Path(__file__).parents[2] / "patches" / "src" / "pytorch" / "test" / "test_lms.py"


# What others do with fewer processes, or with another model.
LONG = {
    "checks_train_devices:check_train_collectives_of_three",
    "checks_train_devices:check_train_beside_collectives_that_record_no_stream",
}
# The programs that notice the bugs of mutants.toml, and of the other modules one or two.
SAMPLE = {mutant.killed_by for mutant in mutated.mutants()} - LONG | {
    "checks_train_autograd:check_train_with_a_function_that_pins_what_its_kernel_uses",
    "checks_train_autograd:check_train_with_a_gradient_penalty",
    "checks_train_classic:check_train_the_limit_decides_what_leaves",
    "checks_train_classic:check_train_what_is_reclaimed_comes_back",
    "checks_train_departures:check_train_abandons_what_was_prefetched",
    "checks_train_devices:check_train_copies_between_devices",
    "checks_train_optimizers:check_train_with_foreach_optimizers",
    "checks_train_precision:check_train_in_half_precision",
    "checks_train_streams:check_train_from_a_data_loader_with_pinned_memory",
}
CHECKS = parameters(PROGRAMS)


@pytest.fixture(scope="session")
def outcomes(cuda_python: Path, train_environment: dict[str, str], request: pytest.FixtureRequest) -> Outcomes:
    return Outcomes(
        request.session.items, "test_train", cuda_python, train_environment, Path(train_environment["TMPDIR"])
    )


@pytest.fixture(scope="session")
def outcomes_with_two_seeds(
    cuda_python: Path, train_environment: dict[str, str], request: pytest.FixtureRequest
) -> Outcomes:
    environment = {"LMS_TEST_SEEDS": "2", **train_environment}
    items, folder = request.session.items, Path(environment["TMPDIR"])
    return Outcomes(items, "test_train_with_two_seeds", cuda_python, environment, folder)


def test_the_sample_is_of_the_programs() -> None:
    assert {":".join(each.values) for each in CHECKS} >= SAMPLE


@pytest.mark.parametrize(("module", "name"), [each for each in CHECKS if ":".join(each.values) in SAMPLE])
def test_train(module: str, name: str, outcomes: Outcomes) -> None:
    trained(outcomes.of(module, name))


@pytest.mark.release
@pytest.mark.parametrize(("module", "name"), CHECKS)
def test_train_with_two_seeds(module: str, name: str, outcomes_with_two_seeds: Outcomes) -> None:
    trained(outcomes_with_two_seeds.of(module, name))


def trained(outcome: dict[str, Any]) -> None:
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"


def test_train_as_the_patch_tests_itself(cuda_python: Path, train_environment: dict[str, str]) -> None:
    """The suite for CUDA that the patch adds to PyTorch's own, all of it."""
    words = [str(cuda_python), str(UPSTREAM), "TestLargeModelSupportCuda"]
    done = subprocess.run(words, capture_output=True, text=True, env=train_environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    functions = UPSTREAM.read_text().partition("class TestLargeModelSupportCuda")[2].count("    def test_")
    assert ran is not None and int(ran[1]) > functions > 0 and "skipped" not in done.stderr, done.stderr
