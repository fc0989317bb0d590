"""A package for ppc64le out of a base that others packaged, with the real framework: the graft of Debian's libtorch
1.13.1, and a model trained with its libraries by an emulated program, with pages of 64 KiB.

The base also has the CUDA allocator of upstream's source, so the glue for that is built, too; test_emulated.py runs it. What the
emulator does not show: the speed and the memory order of a real machine, and Python, which is not run here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import debian_torch
from elsewhere import Programs
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.channel import audit, channel
from lmsbuild.conda import package_file, runpath
from lmsbuild.elf import symbols
from lmsbuild.patch import series
from machines import POWER, Machine, make_root

RECIPES = paths.recipes_folder()
INSTALLED = f"{debian_torch.PLACE}/torch/"
LIMIT = 2 << 30  # bytes of memory that the emulator may take


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    POWER.require()
    return debian_torch.fetch(paths.cache_folder())


@pytest.fixture(scope="module")
def package(
    debian: Path, programs_for: Callable[[Machine], Programs], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What the command makes of the base."""
    folder = tmp_path_factory.mktemp("power")
    cuda = programs_for(POWER).base
    base = debian_torch.make_base(debian, cuda.c10_cuda, cuda.wheel / "torch/include", folder)
    words = [sys.executable, "-m", "lmsbuild", "conda", "pytorch", debian_torch.TAG, "--platform", "linux-ppc64le"]
    words += ["--base", base, "--python", debian_torch.PYTHON, "--level", "1", "--output", folder / "dist"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    base.unlink()
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `torch` of an environment with the package."""
    folder = tmp_path_factory.mktemp("installed")
    for member in package_file.members(package):
        if member.name.startswith(INSTALLED) and member.file is not None:
            target = folder / "torch" / member.name.removeprefix(INSTALLED)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(member.file.read())
    return folder / "torch"


def test_package(package: Path, installed: Path, tmp_path: Path) -> None:
    assert (package.parent.name, package.name) == ("linux-ppc64le", "pytorch-1.13.1-cuda117_py311_lms1_101100.conda")
    libraries = {}
    for path in (installed / "lib").iterdir():
        with path.open("rb") as stream:
            libraries[path.name] = runpath.read(stream, path.name)
    added = {"libtorch_lms.so", "libtorch_lms_cuda.so"}
    assert set(libraries) == {"libc10.so", "libc10_cuda.so", "libtorch.so", "libtorch_cpu.so", *added}
    assert {elf.machine for elf in libraries.values() if elf} == {"EM_PPC64"}
    for name in added:
        glue = libraries[name]
        assert glue is not None and glue.runpath == ("$ORIGIN",)
    assert symbols.needed_library(installed / "lib/libtorch_lms_cuda.so", "libcudart") == "libcudart.so.11.0"
    depends = package_file.read_description(package)["index"]["depends"]
    assert {"typing_extensions", *debian_torch.DEPENDS} <= set(depends)
    assert (installed / "lms/__init__.py").is_file() and "lms" in (installed / "__init__.py").read_text()
    channel.publish(tmp_path / "channel", [package])
    assert audit.check(tmp_path / "channel", RECIPES) == 1


def test_losses_are_the_same_in_less_memory(debian: Path, installed: Path, tmp_path: Path) -> None:
    """The same losses to the bit, in a third of the memory."""
    for path, data in series.new_files(
        paths.patches_folder(), catalogue.find_tag(paths.patches_folder(), debian_torch.TAG, "pytorch")
    ).items():
        if path.endswith(".h"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(data)
    program = tmp_path / "train"
    include = [installed / "include", installed / "include/torch/csrc/api/include"]
    words = [POWER.compiler, "-std=c++14", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path / 'aten/src'}"]
    words += [
        *(f"-isystem{path}" for path in include),
        str(Path(__file__).with_name("train_power.cc")),
        "-o",
        str(program),
    ]
    words += [f"-L{installed / 'lib'}", "-ltorch_lms", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unused = debian_torch.make_unused(tmp_path)
    own = sorted((installed / "lib").iterdir())
    make_root(POWER, [*debian_torch.needed(debian), *unused, *own], tmp_path / "root")
    printed, memory = POWER.run(program, [], tmp_path / "root", {})
    found = re.fullmatch(r"limit (\d+), out (\d+), loss 0x1\.\w+p-\d+\n", printed)
    assert found is not None, printed
    assert int(found[2]) > int(found[1])
    assert memory < LIMIT
