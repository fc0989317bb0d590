"""The grafted GPU wheel of TensorFlow on the simulated CUDA.

TensorFlow opens CUDA's libraries at run time and makes no GPU devices where one is missing. Those that the simulation
does not have are stood in for by empty ones: no test comes to a kernel of theirs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.wheel.target import target_for

NVML = Path(__file__).with_name("nvml.cc")
_HEADERS = re.compile(r"(?:[^/]+\.data/purelib/)?tensorflow(?:_core)?/include/")
# By the release of CUDA that the wheel is for.
STOOD_IN_FOR = {
    "10": (
        *("libcublas.so.10", "libcudnn.so.7", "libcufft.so.10", "libcurand.so.10", "libcusolver.so.10"),
        "libcusparse.so.10",
    ),
    "11": (
        *("libcublas.so.11", "libcublasLt.so.11", "libcudnn.so.8", "libcufft.so.10", "libcurand.so.10"),
        *("libcusolver.so.10", "libcusolver.so.11", "libcusparse.so.11"),  # 10: of CUDA 11.0
    ),
    "12": (
        *("libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.9", "libcufft.so.11", "libcurand.so.10"),
        *("libcusolver.so.11", "libcusparse.so.12"),
    ),
}


def is_old(tag: str) -> bool:
    """Whether it takes an older interpreter than the running one."""
    found = catalogue.find_tag(paths.patches_folder(), tag, "tensorflow")
    return target_for(None).interpreter not in found.interpreters


def unpack(wheel: Path, folder: Path) -> None:
    """Unpacks a wheel without the headers, 1.5 GB."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not _HEADERS.match(name)])
    for apart in folder.glob("*.data/purelib"):  # 2.1 has Python files there
        shutil.copytree(apart, folder, dirs_exist_ok=True)


def package(folder: Path) -> Path:
    """The package in a folder of packages that has TensorFlow's libraries: until 2.1 it is not `tensorflow`."""
    (library,) = folder.glob("tensorflow*/libtensorflow_framework.so.2")
    return library.parent


def _static_runtime(wheel: Path, cuda: str, simulator: Path, scratch: Path) -> dict[str, str]:
    """What static_runtime.py needs where kernels are in a library that has NVIDIA's runtime linked in."""
    library = package(wheel) / "python" / "_pywrap_tensorflow_internal.so"
    linked = _functions(library)
    if not linked:
        return {}
    runtime = min(simulator.glob(f"libcudart.so.{cuda.split('.')[0]}*"))
    simulated = _functions(runtime, "--dynamic")
    lines = [f"{place} {name}" for name, place in linked.items() if name in simulated]
    description = scratch / "static-runtime.txt"
    description.write_text("\n".join((str(library), str(runtime), *lines)))
    return {"LMS_TEST_STATIC_RUNTIME": str(description)}


def _functions(library: Path, *options: str) -> dict[str, str]:
    """Where CUDA's functions are in a library, by name."""
    done = subprocess.run(["nm", "--defined-only", *options, library], capture_output=True, text=True, check=True)
    return {name: place for place, name in re.findall(r"(?m)^(\w+) [tT] (cuda[A-Z]\w*)(?:@.*)?$", done.stdout)}


def environment(wheel: Path, cuda: str, simulator: Path, scratch: Path) -> dict[str, str]:
    """The environment in which an interpreter finds the unpacked wheel, and the simulated CUDA.

    `cuda`: the version that the wheel is for. The interpreter has to have what the wheel requires.
    """
    sources = {name: Path(os.devnull) for name in STOOD_IN_FOR[cuda.split(".")[0]]}
    for name, source in {**sources, "libnvidia-ml.so.1": NVML}.items():
        subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", source, "-o", scratch / name], check=True)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TF_"))},
        "LD_LIBRARY_PATH": f"{simulator}{os.pathsep}{scratch}",
        "LMS_TEST_FRAMEWORK": "tensorflow",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(wheel),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": str(scratch),
        **_static_runtime(wheel, cuda, simulator, scratch),
    }
