"""Builds the library of stand-ins for PyTorch's CUDA kernels (stand_in.h) for the torch that an interpreter has, and says in
which environment that interpreter's programs run on the simulated GPU.

From a test: `environment(python, simulator, folder)`. CUDA's headers are the catalogue's, so lmsbuild has to be installed
where this runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kept_library import kept_library
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import cuda
from lmsbuild.graft import compilation
from simulator import build as simulator_build

HERE = Path(__file__).resolve().parent
AUTOLOAD = HERE / "autoload"
FLAGS = ["-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
# As the wheels for x86-64 are built: DispatchStub.h declares by it how a CPU function is chosen.
FLAGS += ["-DHAVE_AVX2_CPU_DEFINITION", "-DHAVE_AVX512_CPU_DEFINITION"]
_ASK = (
    "import json, pathlib, torch; print(json.dumps([str(pathlib.Path(torch.__file__).parent),"
    "torch._C._GLIBCXX_USE_CXX11_ABI, torch.version.cuda, torch.__version__]))"
)


@dataclass(frozen=True)
class Torch:
    """The torch that an interpreter has."""

    folder: str
    new_strings: bool  # std::string as of C++11
    cuda: str  # the version that it was built for, such as 12.4
    version: str

    @property
    def runtime(self) -> str:
        """Of libcudart, as in its soname."""
        return self.cuda.partition(".")[0]

    @property
    def tag(self) -> catalogue.Tag:
        """The release's."""
        return catalogue.find_tag(paths.patches_folder(), f"v{self.version.partition('+')[0]}", "pytorch")


class UnusableError(Exception):
    """There is no such interpreter, or it cannot import torch."""


def torch_of(python: Path) -> Torch:
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        said = asked.stderr.strip().splitlines() or [f"it ended with exit code {asked.returncode}"]
        raise UnusableError(f"{python} cannot import torch: {said[-1]}")
    try:
        return Torch(*json.loads(asked.stdout))
    except (ValueError, TypeError):
        raise UnusableError(f"{python} is no interpreter of Python") from None


def kept_folder() -> Path:
    """Where scripts and tests keep what is built."""
    folder = paths.cache_folder() / "simulated-gpu"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def for_script(python: str, options: Mapping[str, object] | None = None) -> tuple[Path, dict[str, str]]:
    """The interpreter of that name or path, and its environment. `options`: the simulator's."""
    found = shutil.which(python)
    if found is None:
        raise UnusableError(f"there is no interpreter {python}")
    folder = kept_folder()
    simulator = simulator_build.libraries(folder)
    base = simulator_build.environment(simulator, options=options)
    return Path(found), environment(Path(found), simulator, folder, base)


def environment(python: Path, simulator: Path, folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which every process that imports torch has the stand-ins. The library is kept below `folder`."""
    torch = torch_of(python)
    with_simulator = simulator_build.environment(simulator, torch.runtime, base=base)
    return {
        **with_simulator,
        "LD_PRELOAD": f"{with_simulator['LD_PRELOAD']} {simulator}/libnccl.so.2",
        "LMS_TEST_OPERATORS": str(library(torch, simulator, folder)),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(AUTOLOAD), base.get("PYTHONPATH", "")))),
    }


def library(torch: Torch, simulator: Path, folder: Path) -> Path:
    """The library, kept below `folder` until the sources, the wheel or the simulator's header change."""
    flags = [*FLAGS, f"-std={torch.tag.standard}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_strings)}"]
    compiler = [*compilation.compiler(), *flags]

    def words() -> tuple[list[str], list[str]]:
        headers = cuda.unpack(paths.patches_folder(), torch.cuda, paths.cache_folder(), folder / f"cuda-{torch.cuda}")
        include = [f"{torch.folder}/include", f"{torch.folder}/include/torch/csrc/api/include", headers.include]
        linked = [
            f"{torch.folder}/lib/lib{name}.so" for name in ("torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda")
        ]
        linked += [f"{simulator}/libcuda.so.1", f"{simulator}/libcudart.so.{torch.runtime}"]
        return [*compiler, *(f"-isystem{path}" for path in include)], [*linked, "-Wl,--allow-shlib-undefined"]

    return kept_library(folder, "operators", HERE, (compiler, torch), words)
