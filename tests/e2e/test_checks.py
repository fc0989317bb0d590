"""Runs every check under programs/ with the interpreter that has the built wheel.

Those of LONG run before a release. To run one alone:
``python programs/run_checks.py checks_handout check_raw_pointers`` with that interpreter.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kept
from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "programs"
# Others do the same with fewer processes, or train the same model with other memory and in the other ways.
LONG = (
    *("check_three_of_which_some_work", "check_four_of_which_some_work", "check_models_at_a_sixteenth"),
    *("check_convnet_at_half", "check_lstm_at_half", "check_transformer_at_half", "check_unet3d_at_half"),
    *("check_convnet_at_an_eighth", "check_lstm_at_an_eighth"),
    *("check_transformer_at_a_quarter", "check_unet3d_at_a_quarter"),
    # checks_models trains two of the four models, checks_every_release the other two
    *("check_lstm_at_a_quarter", "check_unet3d_at_an_eighth", "check_convnet", "check_transformer"),
    *("check_convnet_in_the_other_ways", "check_lstm_in_the_other_ways"),
    *("check_transformer_in_the_other_ways", "check_unet3d_in_the_other_ways"),
    # checks_sharing, beside the programs of tests/pager and tests/cuda that share
    *("check_the_environment", "check_two_that_take_turns"),
    # checks_launching
    *("check_a_program_sees_what_python_shows_it", "check_what_a_program_sets_for_torch_has_effect"),
    # checks_ram, beside a group that changes
    "check_a_program_in_a_group_just_trains",
    # checks_disk, beside a directory that is full
    *("check_several_directories_without_touching_the_program", "check_a_disk_that_fails_is_left_out"),
    # checks_compile
    *("check_forward_and_backward", "check_inputs_are_pinned_for_the_call"),
    "check_a_graph_in_cpp_is_pinned_for_the_call",
)


@pytest.fixture(scope="session")
def outcomes(
    lms_python: Path, built_wheel: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    scratch = tmp_path_factory.mktemp("checks")
    environment = {
        **os.environ,
        **kept.compiled(built_wheel),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TMPDIR": str(scratch),
    }
    return Outcomes(request.session.items, "test_check", lms_python, environment, scratch)


@pytest.mark.parametrize(("module", "name"), parameters(PROGRAMS, release=LONG))
def test_check(module: str, name: str, outcomes: Outcomes) -> None:
    outcome = outcomes.of(module, name)
    if outcome["status"] == "skipped":
        pytest.skip(outcome["text"].strip())
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
