"""Runs every check under tensorflow_programs/ with the grafted GPU wheel of TensorFlow on the simulated CUDA.

LMS_TEST_TF_TAGS names the releases, such as "v2.1.0 v2.11.1": an older one runs with the interpreter that it is for.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import tensorflow_gpu
from checks import Outcomes, parameters
from lmsbuild import paths
from lmsbuild.catalogue import catalogue

PROGRAMS = Path(__file__).parent / "tensorflow_programs"
SCRIPT = Path(__file__).parents[2] / "ci" / "gpu" / "run_tensorflow.py"
TAG = "v2.14.1"
TAGS = os.environ.get("LMS_TEST_TF_TAGS", TAG).split()


@pytest.fixture(scope="module")
def environment_of(
    tensorflow_gpu_wheel: Callable[[str], Path], simulated_cuda: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, str]]:
    """The environment in which an interpreter finds the grafted GPU wheel of a tag and the simulated CUDA."""

    @functools.cache
    def of_tag(name: str) -> dict[str, str]:
        wheel, tag = tensorflow_gpu_wheel(name), catalogue.find_tag(paths.patches_folder(), name, "tensorflow")
        scratch = tmp_path_factory.mktemp("tensorflow-checks")
        found = tensorflow_gpu.environment(wheel, tag.cuda, simulated_cuda, scratch)
        # What the wheel requires is in the environment that has the same release for CPUs.
        return found | {"PYTHONPATH": f"{wheel}{os.pathsep}{PROGRAMS}"}

    return of_tag


@pytest.fixture(scope="module")
def environment(environment_of: Callable[[str], dict[str, str]]) -> dict[str, str]:
    return environment_of(TAG)


@pytest.fixture(scope="module")
def outcomes(
    any_tensorflow_python: Callable[[str], Path],
    environment_of: Callable[[str], dict[str, str]],
    request: pytest.FixtureRequest,
) -> Callable[[str], Outcomes]:
    """The outcomes of a tag's checks."""

    @functools.cache
    def of_tag(name: str) -> Outcomes:
        python, environment = any_tensorflow_python(name), environment_of(name)
        items = [item for item in request.session.items if f"[{name}-" in item.name]
        return Outcomes(items, "test_tensorflow_check", python, environment, Path(environment["TMPDIR"]))

    return of_tag


def every_check() -> list[Any]:
    return [
        pytest.param(tag, *each.values, id=f"{tag}-{each.values[0]}-{each.values[1]}")
        for tag in TAGS
        for each in parameters(PROGRAMS)
    ]


@pytest.mark.parametrize(("tag", "module", "name"), every_check())
def test_tensorflow_check(tag: str, module: str, name: str, outcomes: Callable[[str], Outcomes]) -> None:
    outcome = outcomes(tag).of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"


def run_script(python: Path, environment: Mapping[str, str], out: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), "--out", str(out), "--python", str(python), "--simulated"]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600, check=False)


@pytest.mark.release  # tests/cuda/test_ci_gpu.py runs the parts that it shares with the script for PyTorch
def test_the_script_for_a_real_gpu(
    tensorflow_python: Callable[[str], Path], environment: dict[str, str], tmp_path: Path
) -> None:
    environment = environment | {"SIM_CUDA_DEVICES": "2"}
    done = run_script(tensorflow_python(TAG), environment, tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "simulated-tensorflow.json").read_text())
    assert content["complete"]
    assert [check["oversubscription"] for check in content["results"]["contents"]["checks"]] == [2, 4]
    again = run_script(tensorflow_python(TAG), environment, tmp_path)
    assert again.returncode == 0
    assert "kept from before: contents" in again.stderr


def test_the_script_without_a_gpu_build(tensorflow_python: Callable[[str], Path], tmp_path: Path) -> None:
    done = run_script(tensorflow_python(TAG), os.environ, tmp_path)
    assert done.returncode == 55
    assert "lmsbuild tensorflow v2.14.1" in done.stderr
