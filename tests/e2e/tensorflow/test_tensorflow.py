"""Official TensorFlow wheels, patched by the tool: every check under programs/, with each of the releases.

To run one alone, with the interpreter that the fixture made and programs/ in PYTHONPATH:
``LMS_TEST_FRAMEWORK=tensorflow python ../programs/run_checks.py checks_tf_handout check_sessions``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "programs"
TAGS = ["v2.14.1", "v2.21.0"]  # Keras 2 and 3, C++ headers of both kinds


def every_check() -> list[Any]:
    return [
        pytest.param(tag, *each.values, id=f"{tag}-{each.values[0]}-{each.values[1]}")
        for tag in TAGS
        for each in parameters(PROGRAMS)
    ]


@pytest.fixture(scope="session")
def outcomes(
    tensorflow_python: Callable[[str], Path], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Outcomes]:
    """The outcomes of a tag's checks."""
    known: dict[str, Outcomes] = {}

    def of_tag(tag: str) -> Outcomes:
        if tag not in known:
            scratch = tmp_path_factory.mktemp(tag)
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TF_"))},
                "LMS_TEST_FRAMEWORK": "tensorflow",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(PROGRAMS),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TMPDIR": str(scratch),
            }
            items = [item for item in request.session.items if f"[{tag}-" in item.name]
            known[tag] = Outcomes(items, "test_tensorflow", tensorflow_python(tag), environment, scratch)
        return known[tag]

    return of_tag


@pytest.mark.parametrize(("tag", "module", "name"), every_check())
def test_tensorflow(tag: str, module: str, name: str, outcomes: Callable[[str], Outcomes]) -> None:
    outcome = outcomes(tag).of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
