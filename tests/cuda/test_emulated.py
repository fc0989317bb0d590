"""The stress of the CUDA allocator decorator (stress.cc), and on POWER all of object_units.cc, as programs for POWER and
ARM, emulated, with the pages that such machines have.

libc10_cuda.so is built from upstream's source for the machine, libc10.so is Debian's, and CUDA is simulated, with less
address space than otherwise: the emulator keeps a table of all of it. Nothing of a GPU, and nothing of the speed or of the
memory order of a real machine, is seen here: the emulator runs on this machine's processor.

LMS_TEST_STEPS sets the steps of every run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import allocator_programs
from lmsbuild import paths
from machines import ARM, ARM_LARGE_PAGES, POWER, Machine, fetch_packages, make_root

HERE = Path(__file__).parent
TAG = "v1.13.1"  # the one that Debian has for these machines
CUDART = "11.0"
PACKAGES = {"libtorch1.13": "libc10.so.1.13", "libgoogle-glog0v6": "libglog.so.1", "libgflags2.2": "libgflags.so.2.2"}
PACKAGES |= {"libnuma1": "libnuma.so.1"}
CASES = re.findall(r"^CASE\((\w+)\) \{", (HERE / "object_units.cc").read_text(), re.MULTILINE)
SMALL = {"SIM_CUDA_ADDRESS_SPACE": str(16 << 30)}
LIMIT = 2 << 30  # bytes of memory that the emulator may take
REAL_THREADS = {"SIM_CUDA_MODE": "threads"}


@dataclass(frozen=True)
class Programs:
    """What was built for one kind of machine."""

    base: allocator_programs.Allocator
    simulator: Path
    folder: Path
    root: Path

    def build(self, source: str) -> Path:
        program = self.folder / Path(source).stem
        if not program.exists():
            allocator_programs.build(self.base, HERE / source, self.simulator, "plain", program)
        return program


@pytest.fixture(scope="session")
def programs_for(
    simulator: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Machine], Programs]:
    """programs_for(machine), for all machines with one compiler the same. Skips where they cannot be built."""
    known: dict[str, Programs] = {}

    def make(machine: Machine) -> Programs:
        machine.require()
        if machine.triple not in known:
            folder = tmp_path_factory.mktemp(f"emulated-{machine.name}")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("CXX", machine.compiler)
                known[machine.triple] = _prepare(machine, simulator, folder)
        return known[machine.triple]

    return make


def _prepare(machine: Machine, simulator: Callable[..., Path], folder: Path) -> Programs:
    tree = fetch_packages(machine.debian, list(PACKAGES), paths.cache_folder())
    libraries = [tree / "usr/lib" / machine.triple / name for name in PACKAGES.values()]
    simulated = simulator(releases=[CUDART])
    runtime = simulated / f"libcudart.so.{CUDART}"
    base = allocator_programs.prepare_elsewhere(TAG, libraries[0], runtime, folder)
    allocator_programs.build_library(base, HERE / "late_library.cc", folder / "late_library.so")
    own = [runtime, simulated / "libcuda.so.1", base.c10_cuda, folder / "late_library.so"]
    make_root(machine, [*libraries, *own], folder / "root")
    programs = Programs(base, simulated, folder, folder / "root")
    programs.build("stress.cc")
    if machine == POWER:
        programs.build("object_units.cc")
    return programs


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
    *(
        Run(machine, seed, 10_000, threads=3, policy="iteration")
        for seed, machine in enumerate((POWER, ARM, ARM_LARGE_PAGES), 1)
    ),
    *(Run(machine, seed, 2_000, threads=3, options=REAL_THREADS) for seed, machine in enumerate((POWER, ARM), 1)),
]


def emulate(machine: Machine, programs: Programs, words: list[str], variables: Mapping[str, str], folder: Path) -> str:
    """What the program prints when it succeeds, within the memory that it may take."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SIM_", "LMS_"))}
    command = [*machine.words(Path(words[0]), programs.root), *words[1:]]
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(command, env={**own, **variables}, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    printed = output.read_text(errors="replace")
    assert process.returncode == 0, f"{command}, {dict(variables)}: {process.returncode}\n{printed[-4000:]}"
    assert usage.ru_maxrss << 10 < LIMIT
    print(f"{usage.ru_maxrss >> 10} MiB, {usage.ru_utime + usage.ru_stime:.1f} s")
    return printed


@pytest.mark.parametrize("machine", [POWER, ARM, ARM_LARGE_PAGES], ids=lambda machine: machine.name)
def test_a_seed_is_the_same_run_on_every_machine(
    machine: Machine, programs_for: Callable[[Machine], Programs], on_allocator: Callable[..., Path], tmp_path: Path
) -> None:
    words = Run(machine, 1, 10_000).words
    programs = programs_for(machine)
    printed = emulate(machine, programs, [str(programs.build("stress.cc")), *words], SMALL, tmp_path)
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
def test_contents(run: Run, programs_for: Callable[[Machine], Programs], tmp_path: Path) -> None:
    programs = programs_for(run.machine)
    words = [str(programs.build("stress.cc")), *run.words]
    printed = emulate(run.machine, programs, words, {**SMALL, **run.options}, tmp_path)
    assert re.match(r"out [1-9]\d* MiB, in [1-9]\d* MiB", printed)


@pytest.mark.parametrize("case", CASES)
def test_imports_on_power(case: str, programs_for: Callable[[Machine], Programs], tmp_path: Path) -> None:
    """How a library finds a function that it imports differs by the machine."""
    programs = programs_for(POWER)
    variables = {**SMALL, "SIM_CUDA_DEVICES": "2", "SIM_CUDA_MEMORY": str(128 << 20)}
    variables["LMS_TEST_LIBRARY"] = str(programs.root / "lib/late_library.so")
    emulate(POWER, programs, [str(programs.build("object_units.cc")), case], variables, tmp_path)
