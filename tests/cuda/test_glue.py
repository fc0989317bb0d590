"""Runs every case of glue_units.cc on the libraries of the patched CUDA wheel and the simulated CUDA."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import presets

HERE = Path(__file__).parent
UNITS = HERE / "glue_units.cc"
GLUE = HERE.parents[1] / "patches" / "src" / "pytorch" / "aten" / "src" / "ATen"
PAGER = HERE.parents[1] / "patches" / "src" / "pager"
CASES = re.findall(r"^CASE\((\w+)\) \{", UNITS.read_text(), re.MULTILINE)
DEVICES = {"SIM_CUDA_DEVICES": "2", "SIM_CUDA_MEMORY": str(128 << 20)}
WHERE = """
import sysconfig, torch
print(torch.__path__[0], sysconfig.get_path("purelib"), int(torch.compiled_with_cxx11_abi()), torch.version.cuda)
"""


@pytest.fixture(scope="session")
def glue_units(
    cuda_python: Path, simulated_cuda: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """The program, and the environment in which it finds the wheel's libraries and the simulated CUDA."""
    folder = tmp_path_factory.mktemp("glue")
    answer = subprocess.run([cuda_python, "-c", WHERE], capture_output=True, text=True, check=True).stdout.split()
    torch, packages, abi, release = Path(answer[0]), Path(answer[1]), answer[2], answer[3].partition(".")[0]
    include = folder / "include"
    (include / "ATen").mkdir(parents=True)
    for name, target in {"lms": PAGER, **{path.name: path for path in GLUE.iterdir()}}.items():
        (include / "ATen" / name).symlink_to(target)
    simulated = [simulated_cuda / "libcuda.so.1", simulated_cuda / f"libcudart.so.{release}"]
    command = [os.environ.get("CXX", "g++"), *presets.flags("plain"), "-std=c++17", "-O1", "-DNDEBUG"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", str(UNITS), "-o", str(folder / "glue_units")]
    command += [f"-I{path}" for path in (include, PAGER, HERE.parent / "pager", HERE / "simulator")]
    # Triton carries all of CUDA's headers.
    for path in (
        torch / "include",
        torch / "include/torch/csrc/api/include",
        packages / "triton/backends/nvidia/include",
    ):
        command += ["-isystem", str(path)]
    command += [f"-L{torch / 'lib'}", "-ltorch_lms_cuda", "-ltorch_lms", "-ltorch_cpu", "-lc10_cuda", "-lc10"]
    command += [*map(str, simulated), "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]
    subprocess.run(command, check=True)
    search = [simulated_cuda, torch / "lib", *packages.glob("nvidia/*/lib")]
    environment = {**os.environ, **DEVICES, "LD_LIBRARY_PATH": os.pathsep.join(map(str, search))}
    return folder / "glue_units", environment | {"LD_PRELOAD": " ".join(map(str, simulated))}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, glue_units: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    program, environment = glue_units
    done = subprocess.run(
        [str(program), case],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
