"""Builds the simulated CUDA, and programs on it."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock

import allocator_programs
import elsewhere
import kept
import old_release
import tensorflow_gpu
from allocator_programs import Allocator
from elsewhere import Programs
from lmsbuild import paths
from lmsbuild.wheel.wheel import file_sha256
from machines import Machine
from operators import build as operators_build

HERE = Path(__file__).parent


def _load_build() -> ModuleType:
    # By path: the name `build` is taken elsewhere.
    spec = importlib.util.spec_from_file_location("simulator_build", HERE / "simulator" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


simulator_build = _load_build()


@pytest.fixture(scope="session")
def simulator() -> Callable[..., Path]:
    """simulator(flavour="plain", without=(), releases=all): the folder of the libraries, built by $CXX if need be."""
    folder = kept.folder() / "simulated-gpu"
    folder.mkdir(parents=True, exist_ok=True)

    def build(
        flavour: str = "plain",
        without: Sequence[str] = (),
        releases: Sequence[str] = tuple(simulator_build.RUNTIMES),
    ) -> Path:
        with FileLock(folder / f"simulator-{flavour}.lock"):  # both processes of `-n 2` may want them
            return simulator_build.libraries(folder, flavour, without, releases)

    return build


@pytest.fixture(scope="session")
def simulated_cuda(simulator: Callable[..., Path]) -> Path:
    """The folder of the libraries without sanitizers."""
    return simulator()


@pytest.fixture(scope="session")
def tensorflow_gpu_wheel(wheel_builder: Callable[..., Path]) -> Callable[[str], Path]:
    """tensorflow_gpu_wheel(tag): a folder with the grafted GPU wheel of the tag unpacked, 1.5 GB."""

    def wheel_of(tag: str) -> Path:
        if tensorflow_gpu.is_old(tag):
            wheel, _ = old_release.build("tensorflow", tag, newest=True)
        else:
            wheel = wheel_builder(tag, "tensorflow")
        return kept.made(f"tensorflow-gpu-{tag}", [file_sha256(wheel)], functools.partial(tensorflow_gpu.unpack, wheel))

    return wheel_of


@pytest.fixture(scope="session")
def any_tensorflow_python(tensorflow_python: Callable[[str], Path]) -> Callable[[str], Path]:
    """As `tensorflow_python`, also for releases that take an older interpreter than the running one."""

    def python_of(tag: str) -> Path:
        if tensorflow_gpu.is_old(tag):
            return old_release.install("tensorflow", tag, "tensorflow-cpu", newest=True)
        return tensorflow_python(tag)

    return python_of


@pytest.fixture(scope="session")
def on_simulated_gpu(
    cuda_python: Path, simulated_cuda: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The environment in which `cuda_python` computes on the simulated CUDA, which has two devices."""
    base = {
        **{name: value for name, value in os.environ.items() if name != "CI"},  # PyTorch's suites ask for more there
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SIM_CUDA_DEVICES": "2",
        "TMPDIR": str(tmp_path_factory.mktemp("on-simulated-gpu")),
    }
    return operators_build.environment(cuda_python, simulated_cuda, simulated_cuda.parent, base)


@pytest.fixture(scope="session")
def train_environment(on_simulated_gpu: dict[str, str]) -> dict[str, str]:
    """The same, in which the programs of train_programs find what they import."""
    found = (on_simulated_gpu["PYTHONPATH"], str(HERE / "train_programs"), str(paths.models_file().parent))
    return {**on_simulated_gpu, "PYTHONPATH": os.pathsep.join(found)}


@pytest.fixture(scope="session")
def allocator() -> Callable[[str], Allocator]:
    """allocator(tag). Skips where Debian's source package is needed and the machine cannot get it."""
    return functools.cache(allocator_programs.prepare)


@pytest.fixture(scope="session")
def on_allocator(
    allocator: Callable[[str], Allocator], simulator: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """on_allocator(source, tag, flavour="plain"): a program of this folder with the glue and the pager, on the
    libc10_cuda.so of the tag and the simulated CUDA. Compiled if need be; threads may ask."""
    folder = tmp_path_factory.mktemp("on-allocator")
    building = threading.Lock()

    def build(source: str, tag: str, flavour: str = "plain") -> Path:
        own = folder / f"{tag}-{flavour}"
        program = own / Path(source).stem
        with building:
            own.mkdir(exist_ok=True)
            if not program.exists():
                base = allocator(tag)
                # All of them are there for other tests; of those with a sanitizer one is enough.
                releases = [allocator_programs.runtime(base)] if flavour != "plain" else simulator_build.RUNTIMES
                simulated = simulator(flavour, releases=tuple(releases))
                allocator_programs.build(base, HERE / source, simulated, flavour, program, folder)
        return program

    return build


@pytest.fixture(scope="session")
def shared_library(
    allocator: Callable[[str], Allocator], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """shared_library(source, tag): a library of this folder that uses the allocator. Compiled if need be."""
    folder = tmp_path_factory.mktemp("shared-library")

    def build(source: str, tag: str) -> Path:
        library = folder / f"{Path(source).stem}-{tag}.so"
        if not library.exists():
            allocator_programs.build_library(allocator(tag), HERE / source, library)
        return library

    return build


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
                known[machine.triple] = elsewhere.prepare(machine, simulator, folder)
        return known[machine.triple]

    return make
