"""The CMake project in patches/src/pager: what it builds, and what an editor learns from it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flavours import PAGER, flags
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.patch import series
from presets import BuildError, Builds

pytestmark = pytest.mark.build  # runs CMake in most tests
GLUE = PAGER.parent / "pytorch/aten/src/ATen"
TENSORFLOW = PAGER.parent / "tensorflow"


def files(*folders: Path) -> set[Path]:
    """What is compiled in these folders."""
    return {path for folder in folders for path in folder.glob("*.c*") if path.suffix in (".cc", ".cpp")}


def test_all_cc_includes_every_file_once() -> None:
    included = re.findall(r'^#include "(.+)"$', (PAGER / "all.cc").read_text(), re.MULTILINE)
    assert sorted(included) == sorted(
        path.relative_to(PAGER).as_posix() for path in PAGER.rglob("*.cc") if path.name != "all.cc"
    )


def test_the_compile_commands_cover_every_file(builds: Builds) -> None:
    commands = json.loads((builds.folder("plain") / "compile_commands.json").read_text())
    found = [Path(row["file"]).resolve() for row in commands]
    assert len(found) == len(set(found))
    assert set(PAGER.rglob("*.cc")) | files(PAGER.parents[2] / "tests/pager") <= set(found)


@pytest.mark.parametrize("preset", ["plain", "address", "thread", "bench"])
def test_the_flags_of_the_presets_are_those_of_the_commands(preset: str, builds: Builds) -> None:
    for row in json.loads((builds.folder(preset) / "compile_commands.json").read_text()):
        words = shlex.split(row["command"])
        wanted = flags(preset)
        assert any(words[start : start + len(wanted)] == wanted for start in range(len(words))), row


@pytest.mark.parametrize(
    ("interface", "own"),
    [
        ("class CUDAAllocator : public Allocator {};\n", {"LmsAllocatorInterface.cpp"}),
        ("namespace CUDACachingAllocator {}\n", {"LmsAllocatorObject.cpp"}),
    ],
)
def test_the_glue_finds_the_pager_and_the_wheel(interface: str, own: set[str], builds: Builds, tmp_path: Path) -> None:
    wheel = tmp_path / "torch"
    contents = {
        "include/c10/cuda/CUDACachingAllocator.h": interface,
        "include/ATen/ATen.h": "int of_the_wheel;\n",
        "share/cmake/Torch/TorchConfig.cmake": "    CXX_STANDARD 20\n",
    }
    for name, text in contents.items():
        (wheel / name).parent.mkdir(parents=True, exist_ok=True)
        (wheel / name).write_text(text)
    (tmp_path / "tensorflow/include").mkdir(parents=True)
    (tmp_path / "cuda_runtime_api.h").touch()
    places = {"TORCH_WHEEL": wheel, "TENSORFLOW_WHEEL": tmp_path / "tensorflow", "CUDA_INCLUDE": tmp_path}
    options = [f"-D{name}={place}" for name, place in places.items()]
    build = tmp_path / "build"
    builds.cmake("-S", PAGER, "-B", build, "--preset", "plain", *options)
    commands = {
        Path(row["file"]).resolve(): row["command"]
        for row in json.loads((build / "compile_commands.json").read_text())
        if not Path(row["file"]).resolve().is_relative_to(PAGER)
    }
    cuda = {f"Lms{name}.cpp" for name in ("Cuda", "CudaBlocks", "CudaDevices", "Imports", "Launches")} | own
    torch = files(GLUE) | {GLUE / "cuda" / name for name in cuda}
    assert {path for path in commands if path.is_relative_to(GLUE)} == torch
    tensorflow = files(TENSORFLOW / "tensorflow/core/common_runtime/lms")
    assert {path for path in commands if path.is_relative_to(TENSORFLOW)} == tensorflow
    assert "-std=c++20" in shlex.split(commands[GLUE / "LmsCpu.cpp"])
    source = tmp_path / "source.cc"
    source.write_text("#include <ATen/ATen.h>\n#include <ATen/LmsCpu.h>\n#include <ATen/lms/pager.h>\n")
    _parse(commands[GLUE / "LmsCpu.cpp"], source)
    source.write_text('#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"\n')
    _parse(commands[TENSORFLOW / "tensorflow/core/common_runtime/lms/lms_views.cc"], source)


@pytest.mark.parametrize("name", ["TORCH_WHEEL", "TENSORFLOW_WHEEL", "CUDA_INCLUDE"])
def test_a_wrong_folder_is_an_error_that_says_what_is_wanted(name: str, builds: Builds, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=rf"-D{name}=/nope: give the folder that has"):
        builds.cmake("-S", PAGER, "-B", tmp_path / "build", "--preset", "plain", f"-D{name}=/nope")


def test_the_patches_carry_nothing_of_the_project() -> None:
    patches = paths.patches_folder()
    for tag in {(tag.framework, tag.generation): tag for tag in catalogue.tags(patches)}.values():
        names = {Path(path).name for path in series.new_files(patches, tag)}
        assert "all.cc" in names
        assert not names & {"CMakeLists.txt", "CMakePresets.json"}


def _parse(command: str, source: Path) -> None:
    """Parses another file by the command of a file."""
    words = shlex.split(command)
    done = subprocess.run(
        [*words[: words.index("-o")], "-fsyntax-only", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
