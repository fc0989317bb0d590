"""Runs every case of glue_units.cc on the libraries of the patched CUDA wheel and the simulated CUDA."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

import cases
import kept
from flavours import PAGER, flags

HERE = Path(__file__).parent
UNITS = HERE / "glue_units.cc"
GLUE = HERE.parents[1] / "patches" / "src" / "pytorch" / "aten" / "src" / "ATen"
DEVICES = {"SIM_CUDA_DEVICES": "2", "SIM_CUDA_MEMORY": str(128 << 20)}
WHERE = """
import sysconfig, torch
print(torch.__path__[0], sysconfig.get_path("purelib"), int(torch.compiled_with_cxx11_abi()), torch.version.cuda)
"""


@pytest.fixture(scope="module")
def glue_units(cuda_python: Path, simulated_cuda: Path) -> tuple[Path, dict[str, str]]:
    """The program, and the environment in which it finds the wheel's libraries and the simulated CUDA."""
    answer = subprocess.run([cuda_python, "-c", WHERE], capture_output=True, text=True, check=True).stdout.split()
    torch, packages, abi, release = Path(answer[0]), Path(answer[1]), answer[2], answer[3].partition(".")[0]
    simulated = [simulated_cuda / "libcuda.so.1", simulated_cuda / f"libcudart.so.{release}"]
    # In the checkout, so that paths relative to it, and so what ccache keeps, are the same in another one.
    folder = kept.ROOT / ".pytest_cache" / "glue-units"
    include = folder / "include" / "ATen"
    compile_ = [os.environ.get("CXX", "g++"), *flags("plain"), "-std=c++17", "-O1", "-DNDEBUG"]
    compile_ += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    compile_ += [f"-I{path}" for path in (include.parent, PAGER, HERE.parent / "pager", HERE / "simulator")]
    # Triton carries all of CUDA's headers.
    for path in (
        torch / "include",
        torch / "include/torch/csrc/api/include",
        packages / "triton/backends/nvidia/include",
    ):
        compile_ += ["-isystem", str(path)]
    linked = [f"-L{torch / 'lib'}", "-ltorch_lms_cuda", "-ltorch_lms", "-ltorch_cpu", "-lc10_cuda", "-lc10"]
    linked += [*map(str, simulated), "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]
    include.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        for old in include.iterdir():
            old.unlink()
        for name, target in {"lms": PAGER, **{path.name: path for path in GLUE.iterdir()}}.items():
            (include / name).symlink_to(target)
        program, compiled = folder / "glue_units", folder / "glue_units.o"
        subprocess.run([*kept.launcher(), *compile_, "-c", UNITS, "-o", compiled], check=True)
        subprocess.run([*compile_, compiled, *linked, "-o", program], check=True)
    search = [simulated_cuda, torch / "lib", *packages.glob("nvidia/*/lib")]
    environment = {**DEVICES, "LD_LIBRARY_PATH": os.pathsep.join(map(str, search))}
    return program, environment | {"LD_PRELOAD": " ".join(map(str, simulated))}


@pytest.mark.parametrize("case", cases.names(UNITS))
def test_case(case: str, glue_units: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    program, environment = glue_units
    cases.run([program, case], tmp_path, environment)
