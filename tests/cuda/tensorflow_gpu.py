"""The grafted GPU wheel of TensorFlow on the simulated CUDA.

TensorFlow opens CUDA's libraries at run time and makes no GPU devices where one is missing. Those that the simulation
does not have are stood in for by empty ones: no test comes to a kernel of theirs.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

NVML = Path(__file__).with_name("nvml.cc")
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


def unpack(wheel: Path, folder: Path) -> None:
    """Unpacks a wheel without the headers, 1.5 GB."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not name.startswith("tensorflow/include/")])


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
    }
