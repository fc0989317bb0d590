"""What the patch adds, compiled by the framework's own build rules, in the real tree that Debian has.

The tree is configured as `--mode full --source debian` configures it, and of its thousand objects those of the added files are
made, with all that they need: sources that the build generates, and none of the libraries.

That takes minutes, and runs before a release. It compiles the files for CUDA, too, by the rule of one for the CPU, as the framework
has no rule for them in this build.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Symbol, SymbolTableSection

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import apt, cuda
from lmsbuild.full import plan
from lmsbuild.patch.patch import Patch, apply_to_checkout, find_patch
from lmsbuild.source import debian, source

pytestmark = pytest.mark.release

PATCHES = paths.patches_folder()
TAG = catalogue.find_tag(PATCHES, "pytorch:v2.6.0")
# What CMake does not look for: the tree is never linked, and these are for what is off here.
NEEDLESS = {
    *("flatbuffers-compiler", "libblas-dev", "libflatbuffers-dev", "liblapack-dev", "libpthreadpool-dev"),
    "nlohmann-json3-dev",
}
OFF = {"BLAS": "Eigen", "USE_LAPACK": "OFF"}
CUDA = "aten/src/ATen/cuda/"


@dataclass(frozen=True)
class Compiled:
    """The patched tree with the objects of the added sources."""

    tree: Path
    patch: Patch
    commands: dict[str, list[str]]  # the compiler's words, by added source
    said: str  # by the compilers

    def object_of(self, name: str) -> Path:
        words = self.commands[name]
        return self.tree / "build" / words[words.index("-o") + 1]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("full")
    tree, patch, cache = folder / "source", find_patch(PATCHES, TAG), paths.cache_folder()
    recipe = plan.read_recipe(PATCHES, TAG.framework)
    assert recipe.debian
    try:
        lacking = debian.missing_packages([each for each in recipe.debian.packages if each not in NEEDLESS])
        if lacking:
            pytest.skip(f"needs Debian's packages {' '.join(lacking)}")
        source.obtain(source.Options(TAG, PATCHES, cache, tree, source.DEBIAN, whole=True))
    except apt.NotDebian as error:
        pytest.skip(str(error))
    apply_to_checkout(patch, tree, TAG)
    made = plan.make(plan.Options(TAG, PATCHES, cache, folder, source=source.DEBIAN))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **made.environment, **OFF, "PATH": programs}
    _run([sys.executable, "setup.py", "build", "--cmake-only"], tree, environment)
    commands = {}
    for row in json.loads((tree / "build/compile_commands.json").read_text()):
        name = os.path.relpath(row["file"], tree)
        if name in patch.added:
            assert name not in commands, f"{name} is compiled twice"
            commands[name] = shlex.split(row["command"])
    found = Compiled(tree, patch, commands, "")
    objects = [str(found.object_of(name).relative_to(tree / "build")) for name in commands]
    return Compiled(tree, patch, commands, _run(["ninja", "-C", "build", *objects], tree, environment))


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def test_the_build_compiles_what_is_added(compiled: Compiled) -> None:
    """Upstream's globs find the glue, and of the pager the one file that includes all others."""
    glue = {name for name in compiled.patch.added if name.endswith(".cpp") and not name.startswith(CUDA)}
    assert "aten/src/ATen/LmsPager.cpp" in glue
    assert set(compiled.commands) == glue
    assert {compiled.object_of(name).relative_to(compiled.tree / "build").parts[:3] for name in glue} == {
        ("caffe2", "CMakeFiles", "torch_cpu.dir")
    }


def test_the_builds_flags_are_enough(compiled: Compiled) -> None:
    assert "warning:" not in compiled.said
    for name, words in compiled.commands.items():
        standard = [word for word in words if word.startswith("-std=")][-1]
        assert standard.removeprefix("-std=gnu++") == TAG.standard.removeprefix("c++"), name
        assert "-fvisibility=hidden" in words and "-fPIC" in words, name


def _symbols(file: Path) -> list[Symbol]:
    with file.open("rb") as opened:
        sections = [each for each in ELFFile(opened).iter_sections() if isinstance(each, SymbolTableSection)]
        return [symbol for section in sections for symbol in section.iter_symbols() if symbol.name]


def _defined(file: Path, visibility: str) -> set[str]:
    return {
        symbol.name
        for symbol in _symbols(file)
        if symbol["st_shndx"] != "SHN_UNDEF"
        and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")
        and symbol["st_other"]["visibility"] == visibility
    }


def _is_ours(symbol: str) -> bool:
    return symbol.startswith("lms_") or "3lms" in symbol or "9lms_torch" in symbol


def _names(symbol: str, declared: str) -> bool:
    return symbol == declared if symbol.startswith("lms_") else f"{len(declared)}{declared}" in symbol


def test_the_library_exports_what_is_declared_and_nothing_else(compiled: Compiled) -> None:
    declared = set()
    for name in compiled.patch.added:
        if name.endswith(".h") and not name.startswith(CUDA):
            text = re.sub("(?m)^#.*", "", (compiled.tree / name).read_text())
            declared |= set(re.findall(r"class LMS_API (\w+)|LMS_API [^;{]*?\b(\w+)\(", text))
    declared = {function or type_ for type_, function in declared}
    visible = set().union(*(_defined(compiled.object_of(name), "STV_DEFAULT") for name in compiled.commands))
    ours = {symbol for symbol in visible if _is_ours(symbol)}
    assert {"lms_pin", "lms_torch_cpu_enable", "Pager"} <= declared
    assert [each for each in sorted(declared) if not any(_names(symbol, each) for symbol in ours)] == []
    assert [symbol for symbol in sorted(ours) if not any(_names(symbol, each) for each in declared)] == []
    hidden = set().union(*(_defined(compiled.object_of(name), "STV_HIDDEN") for name in compiled.commands))
    assert len({symbol for symbol in hidden if _is_ours(symbol)}) > len(ours)


def test_the_library_for_cuda_finds_what_it_needs_in_that_for_the_cpu(compiled: Compiled, tmp_path: Path) -> None:
    runtime = cuda.unpack(PATCHES, TAG.cuda, paths.cache_folder(), tmp_path / "cuda")
    macros = runtime.include / "c10/cuda/impl/cuda_cmake_macros.h"  # as CMake makes it
    macros.parent.mkdir(parents=True)
    macros.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    files = [name for name in compiled.patch.added if name.startswith(CUDA) and name.endswith(".cpp")]
    assert f"{CUDA}LmsCuda.cpp" in files
    like = "aten/src/ATen/LmsCpu.cpp"
    defined: set[str] = set()
    wanted: set[str] = set()
    for name in files:
        made = tmp_path / f"{Path(name).name}.o"
        words = [*compiled.commands[like], "-I", str(runtime.include), "-c", str(compiled.tree / name), "-o", str(made)]
        words.remove(str(compiled.tree / like))
        _run([word for word in words if word != "-Dtorch_cpu_EXPORTS"], compiled.tree / "build", dict(os.environ))
        defined |= _defined(made, "STV_DEFAULT") | _defined(made, "STV_HIDDEN")
        wanted |= {symbol.name for symbol in _symbols(made) if symbol["st_shndx"] == "SHN_UNDEF"}
    wanted = {symbol for symbol in wanted - defined if _is_ours(symbol)}
    exported = set().union(*(_defined(compiled.object_of(name), "STV_DEFAULT") for name in compiled.commands))
    assert wanted and wanted <= exported, sorted(wanted - exported)
