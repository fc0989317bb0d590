"""Runs every case of the test programs of the CUDA backend, and of the pager on it, plain and under the sanitizers.

LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGER = HERE.parents[1] / "patches" / "src" / "pager"
PROGRAMS = ("backend_units", "backend_model", "pager_units")
CASE = re.compile(r"^CASE\((\w+)\) \{", re.MULTILINE)
# ThreadSanitizer itself takes most of the address space.
WITHOUT_THREAD_SANITIZER = {"less_address_space"}
SANITIZER_OPTIONS = {"TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
TIMEOUT_S = 300


def cases() -> list[tuple[str, str, str]]:
    """(flavour, program, case)"""
    return [
        (flavour, program, case)
        for flavour in ("plain", "address", "thread")
        for program in PROGRAMS
        for case in CASE.findall((HERE / f"{program}.cc").read_text())
        if flavour != "thread" or case not in WITHOUT_THREAD_SANITIZER
    ]


@pytest.fixture(scope="session")
def program(simulator: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A program in a flavour, linked with the simulated driver."""
    folder = tmp_path_factory.mktemp("backend")
    compiler = [os.environ.get("CXX", "g++"), "-std=c++14", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    # GCC sees through Pager's own operator new and takes it for a mismatch, but only with the sanitizers' inlining.
    compiler += ["-Wno-mismatched-new-delete"]
    compiler += [f"-I{path}" for path in (PAGER, HERE.parent / "pager", HERE, HERE / "simulator")]

    def build(flavour: str, name: str) -> Path:
        output = folder / f"{name}-{flavour}"
        if not output.exists():
            driver = simulator(flavour)
            flags = [*compiler, *sys.modules["simulator_build"].FLAVOURS[flavour]]
            pager = folder / f"pager-{flavour}.o"
            if not pager.exists():
                subprocess.run([*flags, "-c", str(PAGER / "all.cc"), "-o", str(pager)], check=True)
            inputs = [
                str(HERE / f"{name}.cc"),
                str(pager),
                str(driver / "libcuda.so.1"),
                f"-Wl,-rpath,{driver}",
                "-ldl",
            ]
            subprocess.run([*flags, *inputs, "-o", str(output)], check=True)
        return output

    return build


@pytest.mark.parametrize(("flavour", "name", "case"), cases())
def test_case(flavour: str, name: str, case: str, program: Callable[[str, str], Path], tmp_path: Path) -> None:
    done = subprocess.run(
        [str(program(flavour, name)), case],
        env={**os.environ, **SANITIZER_OPTIONS, "LMS_TEST_DIRECTORY": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
