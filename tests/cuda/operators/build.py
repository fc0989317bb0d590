"""Builds the library of stand-ins for PyTorch's CUDA kernels (stand_in.h) for the torch that an interpreter has, and says in
which environment that interpreter's programs run on the simulated GPU.

From a test: `environment(python, simulator, folder)`. CUDA's headers are the catalogue's, so lmsbuild has to be installed
where this runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import paths
from lmsbuild.fetch import cuda

HERE = Path(__file__).resolve().parent
AUTOLOAD = HERE / "autoload"
SIMULATOR = HERE.parent / "simulator"
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
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


def torch_of(python: Path) -> Torch:
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True).stdout
    return Torch(*json.loads(asked))


def environment(python: Path, simulator: Path, folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which every process that imports torch has the stand-ins. The library is kept below `folder`."""
    torch = torch_of(python)
    return {
        **base,
        "LD_LIBRARY_PATH": str(simulator),
        # The wheel's own search path would come before LD_LIBRARY_PATH.
        "LD_PRELOAD": " ".join(
            f"{simulator}/{name}" for name in ("libcuda.so.1", f"libcudart.so.{torch.runtime}", "libnccl.so.2")
        ),
        "LMS_TEST_OPERATORS": str(library(torch, simulator, folder)),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(AUTOLOAD), base.get("PYTHONPATH", "")))),
    }


def library(torch: Torch, simulator: Path, folder: Path) -> Path:
    """The library, kept below `folder` until the sources, the wheel or the simulator's header change."""
    sources = sorted(HERE.glob("*.cc"))
    compiler = [os.environ.get("CXX", "g++"), *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_strings)}"]
    digest = hashlib.sha256(repr((compiler, torch)).encode())
    for path in [*sources, *sorted(HERE.glob("*.h")), SIMULATOR / "sim.h"]:
        digest.update(path.read_bytes())
    finished = folder.resolve() / f"operators-{digest.hexdigest()[:16]}.so"
    if finished.exists():
        return finished
    for old in folder.glob("operators-*.so"):
        old.unlink()
    headers = cuda.unpack(paths.patches_folder(), torch.cuda, paths.cache_folder(), folder / f"cuda-{torch.cuda}")
    include = [f"{torch.folder}/include", f"{torch.folder}/include/torch/csrc/api/include", headers.include]
    compiler += [f"-I{SIMULATOR}", *(f"-isystem{path}" for path in include)]
    objects = [folder / f"{path.stem}-{os.getpid()}.o" for path in sources]
    with ThreadPoolExecutor(2) as pool:
        pairs = zip(sources, objects, strict=True)
        list(pool.map(_run, ([*compiler, "-c", str(path), "-o", str(output)] for path, output in pairs)))
    unfinished = finished.with_suffix(f".{os.getpid()}")
    libraries = [f"{torch.folder}/lib/lib{name}.so" for name in ("torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda")]
    libraries += [f"{simulator}/libcuda.so.1", f"{simulator}/libcudart.so.{torch.runtime}"]
    _run([*compiler, "-shared", *map(str, objects), *libraries, "-Wl,--allow-shlib-undefined", "-o", str(unfinished)])
    for path in objects:
        path.unlink()
    unfinished.rename(finished)
    return finished


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
