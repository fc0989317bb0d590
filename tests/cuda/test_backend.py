"""Runs every case of the CUDA backend's test programs on the simulated CUDA.

LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGER = HERE.parents[1] / "patches" / "pager"
PROGRAMS = ("backend_units", "backend_model")
CASE = re.compile(r"^CASE\((\w+)\) \{", re.MULTILINE)
TIMEOUT_S = 300


def cases() -> list[tuple[str, str]]:
    return [(program, case) for program in PROGRAMS for case in CASE.findall((HERE / f"{program}.cc").read_text())]


@pytest.fixture(scope="session")
def programs(simulator: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs, linked with the simulated driver."""
    folder = tmp_path_factory.mktemp("backend")
    driver = simulator()
    compiler = os.environ.get("CXX", "g++")
    flags = ["-std=c++14", "-g1", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    flags += [f"-I{path}" for path in (PAGER, HERE.parent / "pager", HERE, HERE / "simulator")]
    unity = folder / "pager.cc"
    unity.write_text("".join(f'#include "{source}"\n' for source in sorted(PAGER.glob("*.cc"))))
    pager = folder / "pager.o"
    subprocess.run([compiler, *flags, "-c", str(unity), "-o", str(pager)], check=True)
    for program in PROGRAMS:
        inputs = [str(HERE / f"{program}.cc"), str(pager), str(driver / "libcuda.so.1"), f"-Wl,-rpath,{driver}", "-ldl"]
        subprocess.run([compiler, *flags, *inputs, "-o", str(folder / program)], check=True)
    return folder


@pytest.mark.parametrize(("program", "case"), cases())
def test_case(program: str, case: str, programs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(programs / program), case],
        env={**os.environ, "LMS_TEST_DIRECTORY": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:]
