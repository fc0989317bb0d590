"""Runs every check under tensorflow_programs/ with the grafted GPU wheel of TensorFlow on the simulated CUDA.

TensorFlow opens CUDA's libraries at run time and makes no GPU devices where one is missing. Those that the simulation
does not have are stood in for by empty ones: no check comes to a kernel.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "tensorflow_programs"
SCRIPT = Path(__file__).parents[2] / "ci" / "gpu" / "run_tensorflow.py"
TAG = "v2.14.1"
STOOD_IN_FOR = (
    *("libcublas.so.11", "libcublasLt.so.11", "libcudnn.so.8", "libcufft.so.10", "libcurand.so.10"),
    *("libcusolver.so.11", "libcusparse.so.11"),
)


@pytest.fixture(scope="module")
def gpu_wheel(wheel_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the grafted GPU wheel unpacked, 1.5 GB; removed at the end."""
    output, folder = tmp_path_factory.mktemp("tensorflow-gpu-dist"), tmp_path_factory.mktemp("tensorflow-gpu")
    with zipfile.ZipFile(wheel_builder(TAG, output, "tensorflow")) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if not name.startswith("tensorflow/include/")])
    shutil.rmtree(output)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def environment(gpu_wheel: Path, simulated_cuda: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which an interpreter finds the grafted GPU wheel and the simulated CUDA."""
    scratch = tmp_path_factory.mktemp("tensorflow-checks")
    for name in STOOD_IN_FOR:
        subprocess.run(["g++", "-shared", "-x", "c++", os.devnull, "-o", scratch / name], check=True)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TF_"))},
        "LD_LIBRARY_PATH": f"{simulated_cuda}{os.pathsep}{scratch}",
        "LMS_TEST_FRAMEWORK": "tensorflow",
        "PYTHONDONTWRITEBYTECODE": "1",
        # What the wheel requires is in the environment that has the same release for CPUs.
        "PYTHONPATH": f"{gpu_wheel}{os.pathsep}{PROGRAMS}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": str(scratch),
    }


@pytest.fixture(scope="module")
def outcomes(
    tensorflow_python: Callable[[str], Path], environment: dict[str, str], request: pytest.FixtureRequest
) -> Outcomes:
    folder = Path(environment["TMPDIR"])
    return Outcomes(request.session.items, "test_tensorflow_check", tensorflow_python(TAG), environment, folder)


@pytest.mark.parametrize(("module", "name"), parameters(PROGRAMS))
def test_tensorflow_check(module: str, name: str, outcomes: Outcomes) -> None:
    outcome = outcomes.of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"


def run_script(python: Path, environment: Mapping[str, str], out: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), "--out", str(out), "--python", str(python), "--simulated"]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600, check=False)


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
