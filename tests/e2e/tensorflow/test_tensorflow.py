"""Official TensorFlow wheels, patched by the tool, run the checks under programs/.

The newest release and one with Keras 2 run all but those of checks_tf_every_release, which an old one runs, with the
interpreter that it is for. LMS_TEST_TENSORFLOW_TAGS names more old releases, such as "v2.2.0 v2.12.0". In CI the newest runs all
but those of LONG, and the one with Keras 2 those of checks_tf_estimator, which the newest cannot; the rest runs before a
release.

To run one alone, with the interpreter that the fixture made and programs/ in PYTHONPATH:
``LMS_TEST_FRAMEWORK=tensorflow python ../programs/run_checks.py checks_tf_handout check_sessions``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kept
import old_release
from checks import Outcomes, parameters
from lmsbuild.catalogue.catalogue import number

PROGRAMS = Path(__file__).parent / "programs"
NEW_TAGS = ["v2.14.1", "v2.21.0"]  # Keras 2 and 3
# Other checks do the same with smaller models, or with settings that the program itself makes.
LONG = (
    *("check_convnet_in_fit", "check_transformer_in_a_loop", "check_lstm_in_fit", "check_unet3d_in_a_loop"),
    *(
        "check_outputs_that_stay",
        "check_stores_in_files",
        "check_training_step_compiled_by_xla",
        "check_two_that_train",
    ),
    *("check_the_environment", "check_what_the_environment_asks_for"),  # of sharing and of tuning
    # What the pager does alike for both frameworks; PyTorch's checks of RAM, and the pager's of policies, run.
    *("check_a_limit_that_follows_ram", "check_bounds"),
    # checks_tf_tflms, whose other checks train with callbacks and hooks, too
    *("check_synchronous_copies", "check_predict_and_evaluate"),
)
OLD_TAGS = ["v2.1.0", *os.environ.get("LMS_TEST_TENSORFLOW_TAGS", "").split()]
OLD_MODULE = "checks_tf_every_release"
ESTIMATOR_MODULE = "checks_tf_estimator"
FIRST_WITHOUT_ESTIMATORS = "v2.16.0"


def every_check() -> list[Any]:
    return [
        pytest.param(tag, *each.values, id=f"{tag}-{each.values[0]}-{each.values[1]}", marks=mark(tag, *each.values))
        for tag in (*NEW_TAGS, *OLD_TAGS)
        for each in parameters(PROGRAMS)
        if can_run(tag, each.values[0])
    ]


def can_run(tag: str, module: str) -> bool:
    if module == ESTIMATOR_MODULE:
        return number(tag) < number(FIRST_WITHOUT_ESTIMATORS)
    return (module == OLD_MODULE) == (tag in OLD_TAGS)


def mark(tag: str, module: str, name: str) -> Any:
    """What parametrize takes for the marks of one check."""
    is_in_ci = tag == NEW_TAGS[-1] or (module == ESTIMATOR_MODULE and tag == NEW_TAGS[0])
    return pytest.mark.build if is_in_ci and name not in LONG else pytest.mark.release


@pytest.fixture(scope="session")
def outcomes(
    tensorflow_python: Callable[[str], Path], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Outcomes]:
    """The outcomes of a tag's checks."""

    @cache
    def of_tag(tag: str) -> Outcomes:
        scratch = tmp_path_factory.mktemp(tag)
        old = tag in OLD_TAGS
        python = old_release.install("tensorflow", tag, "tensorflow-cpu") if old else tensorflow_python(tag)
        environment = {
            **{name: value for name, value in kept.clean_environment().items() if not name.startswith("TF_")},
            "LMS_TEST_FRAMEWORK": "tensorflow",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(PROGRAMS),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TMPDIR": str(scratch),
        }
        items = [item for item in request.session.items if f"[{tag}-" in item.name]
        return Outcomes(items, "test_tensorflow", python, environment, scratch)

    return of_tag


@pytest.mark.parametrize(("tag", "module", "name"), every_check())
def test_tensorflow(tag: str, module: str, name: str, outcomes: Callable[[str], Outcomes]) -> None:
    outcome = outcomes(tag).of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
