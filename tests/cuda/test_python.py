"""Runs every check under programs/ with a grafted CUDA wheel on the simulated CUDA: what torch.lms and torch.cuda promise."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import kept
from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def environment(
    cuda_python: Path, cuda_wheel: Path, simulated_cuda: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The environment in which that interpreter finds the simulated CUDA, and the programs their kernels."""
    scratch = tmp_path_factory.mktemp("checks")
    release = subprocess.run(
        [cuda_python, "-c", "import torch; print(torch.version.cuda)"], capture_output=True, text=True, check=True
    ).stdout.partition(".")[0]
    driver, runtime = simulated_cuda / "libcuda.so.1", simulated_cuda / f"libcudart.so.{release}"
    command = ["g++", "-std=c++14", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", scratch / "kernels.so"]
    command += [PROGRAMS / "kernels.cc", "-I", Path(__file__).parent / "simulator", driver, runtime]
    subprocess.run(command, check=True)
    (scratch / "libcuda.so").symlink_to(driver)  # Triton links against it
    return {
        **{name: value for name, value in os.environ.items() if name != "CI"},
        **kept.compiled(cuda_wheel),
        "LD_PRELOAD": f"{driver} {runtime}",  # the wheel's own search path comes before LD_LIBRARY_PATH
        "LD_LIBRARY_PATH": str(simulated_cuda),
        "LIBRARY_PATH": str(scratch),
        "LMS_TEST_KERNELS": str(scratch / "kernels.so"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(PROGRAMS),
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


@pytest.fixture(scope="session")
def outcomes(cuda_python: Path, environment: dict[str, str], request: pytest.FixtureRequest) -> Outcomes:
    folder = Path(environment["TMPDIR"])
    return Outcomes(request.session.items, "test_cuda_check", cuda_python, environment, folder)


@pytest.mark.parametrize(("module", "name"), parameters(PROGRAMS))
def test_cuda_check(module: str, name: str, outcomes: Outcomes) -> None:
    outcome = outcomes.of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
