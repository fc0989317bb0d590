"""Official TensorFlow wheels, patched by the tool, run the checks under programs/.

The newest release and one with Keras 2 run all but those of checks_tf_every_release, which an old one runs, with the
interpreter that it is for. LMS_TEST_TENSORFLOW_TAGS names more old releases, such as "v2.2.0 v2.12.0". The checks of
checks_tf_estimator and those of MODELS run on the one with Keras 2, and those of ALIKE on the newest; before a release they
run on every one that can, and those of LONG at all.

To run one alone, with the interpreter that the fixture made and programs/ in PYTHONPATH:
``LMS_TEST_FRAMEWORK=tensorflow python ../programs/run_checks.py checks_tf_handout check_sessions``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import old_release
from checks import Outcomes, parameters
from lmsbuild.catalogue.catalogue import number

PROGRAMS = Path(__file__).parent / "programs"
NEW_TAGS = ["v2.14.1", "v2.21.0"]  # Keras 2 and 3
# Where it does not matter which Keras there is.
ALIKE = (
    *("checks_tf_handout", "checks_tf_ram", "checks_tf_requests"),
    *("checks_tf_sharing", "checks_tf_switching", "checks_tf_tuning"),
)
# The newest has what each of these does in checks of its own.
MODELS = ("check_convnet_in_fit", "check_transformer_in_a_loop")
LONG = (
    *("check_lstm_in_fit", "check_outputs_that_stay", "check_stores_in_files"),
    *("check_two_that_train", "check_unet3d_in_a_loop"),
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
    once = {ESTIMATOR_MODULE: NEW_TAGS[0], **dict.fromkeys(ALIKE, NEW_TAGS[-1])}
    here = tag == (NEW_TAGS[0] if name in MODELS else once.get(module, tag))
    return () if here and name not in LONG else pytest.mark.release


@pytest.fixture(scope="session")
def outcomes(
    tensorflow_python: Callable[[str], Path], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Outcomes]]:
    """The outcomes of a tag's checks. The environment of an old one is removed at the end."""
    known: dict[str, Outcomes] = {}
    folders: list[Path] = []

    def of_tag(tag: str) -> Outcomes:
        if tag not in known:
            scratch = tmp_path_factory.mktemp(tag)
            if tag in OLD_TAGS:
                folders.append(scratch)
                python = old_release.install(scratch, "tensorflow", tag, "tensorflow-cpu")
            else:
                python = tensorflow_python(tag)
            clean = old_release.clean_environment()
            environment = {
                **{name: value for name, value in clean.items() if not name.startswith("TF_")},
                "LMS_TEST_FRAMEWORK": "tensorflow",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(PROGRAMS),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TMPDIR": str(scratch),
            }
            items = [item for item in request.session.items if f"[{tag}-" in item.name]
            known[tag] = Outcomes(items, "test_tensorflow", python, environment, scratch)
        return known[tag]

    yield of_tag
    for folder in folders:
        shutil.rmtree(folder)


@pytest.mark.parametrize(("tag", "module", "name"), every_check())
def test_tensorflow(tag: str, module: str, name: str, outcomes: Callable[[str], Outcomes]) -> None:
    outcome = outcomes(tag).of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
