"""Trains the programs under tensorflow_train/ with the grafted GPU wheel of TensorFlow on the simulated CUDA, whose
kernels are the CPU's (tensorflow_operators/stand_in.h): whole training programs under memory pressure, equal to the bit
to the same on the CPU.

LMS_TEST_SEEDS sets how many seeds of the schedule each program is run with for each limit and policy, and
LMS_TEST_TF_TAGS the releases, such as "v2.1.0 v2.21.0"; without it, it is 2.14.1, and two programs run with 2.2.0.
That takes minutes, so it runs before a release.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kept
import tensorflow_gpu
from checks import Outcomes, parameters
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from tensorflow_operators import build

PROGRAMS = Path(__file__).parent / "tensorflow_train"
STATIC_RUNTIME = Path(__file__).parent / "tensorflow_programs" / "static_runtime.py"
OLD_TAG = "v2.2.0"  # which knows the types of resources in another way, and has the last release of TFLMS
TAGS = os.environ.get("LMS_TEST_TF_TAGS", f"v2.14.1 {OLD_TAG}").split()
pytestmark = pytest.mark.release
OLD_CHECKS = ("check_lstm", "check_session")
# Of 2.1 the stand-ins cannot see lists, and it lacks what the other three call.
NOT_OF_2_1 = (
    *("check_lstm", "check_shapes_that_depend_on_data", "check_while_loop"),
    *("check_function_with_a_loop", "check_mirrored_with_copies_in_both_directions"),
    "check_mirrored_with_sums_on_one_device",
)


def runs(tag: str, name: str) -> bool:
    is_asked_for = tag != OLD_TAG or "LMS_TEST_TF_TAGS" in os.environ
    return (is_asked_for or name in OLD_CHECKS) and not (tag.startswith("v2.1.") and name in NOT_OF_2_1)


def every_check() -> list[Any]:
    return [
        pytest.param(tag, *each.values, id=f"{tag}-{each.values[0]}-{each.values[1]}")
        for tag in TAGS
        for each in parameters(PROGRAMS)
        if runs(tag, each.values[1])
    ]


@pytest.fixture(scope="session")
def outcomes(
    any_tensorflow_python: Callable[[str], Path],
    tensorflow_gpu_wheel: Callable[[str], Path],
    simulated_cuda: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Outcomes]:
    """The outcomes of a tag's checks."""
    known: dict[str, Outcomes] = {}
    folder = kept.folder() / "tensorflow-operators"

    def of_tag(name: str) -> Outcomes:
        if name not in known:
            tag = catalogue.find_tag(paths.patches_folder(), name, "tensorflow")
            python, wheel, scratch = (
                any_tensorflow_python(name),
                tensorflow_gpu_wheel(name),
                tmp_path_factory.mktemp(name),
            )
            # The wheel for CPUs has the same headers.
            (installed,) = python.parents[1].glob("lib/python*/site-packages")
            include = tensorflow_gpu.package(installed) / "include"
            environment = tensorflow_gpu.environment(wheel, tag.cuda, simulated_cuda, scratch)
            environment |= {
                "LMS_TEST_OPERATORS": str(build.library(folder, tag, wheel, include, simulated_cuda)),
                "PYTHONPATH": os.pathsep.join(map(str, (wheel, PROGRAMS, STATIC_RUNTIME.parent))),
                "TF_ENABLE_ONEDNN_OPTS": "0",
            }
            items = [item for item in request.session.items if f"[{name}-" in item.name]
            known[name] = Outcomes(items, "test_tensorflow_train", python, environment, scratch)
        return known[name]

    return of_tag


@pytest.fixture
def outcomes_of_tag(tag: str, outcomes: Callable[[str], Outcomes]) -> Outcomes:
    """What is built for a tag is built here, not in the test."""
    return outcomes(tag)


@pytest.mark.parametrize(("tag", "module", "name"), every_check())
def test_tensorflow_train(tag: str, module: str, name: str, outcomes_of_tag: Outcomes) -> None:
    outcome = outcomes_of_tag.of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
