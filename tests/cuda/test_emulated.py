"""The stress of the CUDA allocator decorator (stress.cc), and on POWER all of object_units.cc, as programs for POWER and
ARM, emulated, with the pages that such machines have.

libc10_cuda.so is built from upstream's source for the machine, libc10.so is Debian's, and CUDA is simulated, with less
address space than otherwise: the emulator keeps a table of all of it. Nothing of a GPU, and nothing of the speed or of the
memory order of a real machine, is seen here: the emulator runs on this machine's processor.

All that takes minutes, so it runs before a release. LMS_TEST_STEPS sets the steps of every run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import cases
import synthetic
from elsewhere import CUDART, TAG, Programs
from lmsbuild import paths
from lmsbuild.catalogue.catalogue import find_tag
from lmsbuild.conda import runpath
from lmsbuild.elf import symbols
from lmsbuild.fetch import cuda
from lmsbuild.graft import compilation, graft
from lmsbuild.patch.series import read_series
from lmsbuild.wheel.target import Target
from lmsbuild.wheel.wheel import WheelFile
from machines import ARM, ARM_LARGE_PAGES, POWER, Machine

HERE = Path(__file__).parent
CASES = cases.names(HERE / "object_units.cc")
SMALL = {"SIM_CUDA_ADDRESS_SPACE": str(16 << 30)}
LIMIT = 2 << 30  # bytes of memory that the emulator may take
REAL_THREADS = {"SIM_CUDA_MODE": "threads"}
STEPS = 10_000
MACHINES = (POWER, ARM, ARM_LARGE_PAGES)
pytestmark = pytest.mark.release  # minutes


@dataclass(frozen=True)
class Run:
    """A run of the stress."""

    machine: Machine
    seed: int
    steps: int
    threads: int = 1
    policy: str = "lru"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        return [str(self.seed), os.environ.get("LMS_TEST_STEPS", str(self.steps)), str(self.threads), self.policy]


RUNS = [
    *(Run(machine, seed, STEPS, threads=3, policy="iteration") for seed, machine in enumerate(MACHINES, 1)),
    *(Run(machine, seed, STEPS // 5, threads=3, options=REAL_THREADS) for seed, machine in enumerate(MACHINES[:2], 1)),
]


def emulate(machine: Machine, program: Path, words: list[str], variables: Mapping[str, str]) -> str:
    """What the program prints when it succeeds, within the memory that it may take."""
    printed, memory = machine.run(program, words, program.parent / "root", variables)
    assert memory < LIMIT
    return printed


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_seed_is_the_same_run_on_every_machine(
    machine: Machine, programs_for: Callable[[Machine], Programs], on_allocator: Callable[..., Path]
) -> None:
    words = Run(machine, 1, 3_000).words
    printed = emulate(machine, programs_for(machine).build("stress.cc"), words, SMALL)
    here = subprocess.run(
        [on_allocator("stress.cc", TAG), *words],
        env={**os.environ, **SMALL},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.match(r"out [1-9]\d* MiB, in [1-9]\d* MiB", printed)
    assert printed == here.stdout


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.machine.name}-{run.policy}-{run.seed}")
def test_contents(run: Run, programs_for: Callable[[Machine], Programs]) -> None:
    program = programs_for(run.machine).build("stress.cc")
    printed = emulate(run.machine, program, run.words, {**SMALL, **run.options})
    assert re.match(r"out [1-9]\d* MiB, in [1-9]\d* MiB", printed)


@pytest.mark.parametrize("case", CASES)
def test_imports_on_power(case: str, programs_for: Callable[[Machine], Programs]) -> None:
    """How a library finds a function that it imports differs by the machine."""
    programs = programs_for(POWER)
    variables = {**SMALL, "SIM_CUDA_DEVICES": "2", "SIM_CUDA_MEMORY": str(128 << 20)}
    variables["LMS_TEST_LIBRARY"] = str(programs.root / "lib/late_library.so")
    emulate(POWER, programs.build("object_units.cc"), [case], variables)


def test_glue_asks_for_the_runtime_that_the_base_asks_for(
    programs_for: Callable[[Machine], Programs],
    simulator: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the packages of CUDA have is for this machine, so the glue for another is linked with a stand-in for it."""
    programs = programs_for(POWER)
    description = read_series(paths.patches_folder(), find_tag(paths.patches_folder(), TAG, "pytorch")).graft
    base = tmp_path / "base"
    (base / description.cuda_library).parent.mkdir(parents=True)
    (base / description.cuda_library).symlink_to(programs.base.c10_cuda)
    wheel = tmp_path / "torch-1.13.1-cp311-cp311-linux_ppc64le.whl"
    stated = {"METADATA": b"Name: torch\nVersion: 1.13.1\n", "WHEEL": b"Tag: cp311-cp311-linux_ppc64le\n"}
    synthetic.write_wheel(
        wheel, {f"torch-1.13.1.dist-info/{name}": synthetic.Member(data) for name, data in stated.items()}
    )
    here = simulator(releases=["12"]) / "libcudart.so.12"
    monkeypatch.setenv("CXX", POWER.compiler)
    runtime = cuda.Runtime(programs.base.include, here, here)
    tree = compilation.Tree(tmp_path / "patched", base, runtime)
    with WheelFile(wheel) as file:
        found = graft._own_runtime(file, description, Target("3.11", "ppc64le", False), tree, tmp_path)
    assert found and found.library and found.library.name == f"libcudart.so.{CUDART}"
    with found.library.open("rb") as stream:
        elf = runpath.read(stream, found.library.name)
    assert elf and (elf.machine, elf.name) == ("EM_PPC64", found.library.name)
    assert symbols.exported_functions(found.library, "cuda") == symbols.exported_functions(here, "cuda") != []
