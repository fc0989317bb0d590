"""The linters, with the one configuration at the root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headers
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import cuda
from lmsbuild.patch import series
from lmsbuild.wheel.name import parse_name
from presets import Builds

pytestmark = pytest.mark.build  # the type checker and clang-tidy take minutes

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"
PAGER = sorted(path for path in (PATCHES / "src/pager").rglob("*.cc") if path.name != "all.cc")
WORKFLOWS = sorted((ROOT / "ci/github").glob("*.yml"))
GLUE = PATCHES / "src/pytorch/aten/src/ATen"


def _check(*words: str | Path) -> None:
    tool = Path(sys.executable).with_name(str(words[0]))
    done = subprocess.run([tool, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, words))}\n{done.stdout[-20000:]}{done.stderr[-5000:]}")


def _sources(*folders: str) -> list[Path]:
    found = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in (".h", ".cc", ".cpp")]
    assert found
    return sorted(found)


def test_ruff_check() -> None:
    _check("ruff", "check", ".")


def test_ruff_format() -> None:
    _check("ruff", "format", "--check", ".")


def test_mypy() -> None:
    _check("mypy")


def test_schema_of_the_workflows() -> None:
    _check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)


def test_safety_of_the_workflows() -> None:
    _check("zizmor", "--offline", "--quiet", "--config", "ci/zizmor.yml", *WORKFLOWS)


def test_clang_format() -> None:
    _check("clang-format", "--dry-run", "-Werror", *_sources("patches", "tests", "tools"))


def test_clang_tidy_of_the_pager(builds: Builds) -> None:
    commands = builds.folder("plain")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: _check("clang-tidy", "--quiet", "-p", commands, source), PAGER))


def test_clang_tidy_of_the_glue(built_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built_wheel) as wheel:
        wheel.extractall(tmp_path, [name for name in wheel.namelist() if name.startswith("torch/include/")])
    tag = catalogue.find_tag(PATCHES, parse_name(built_wheel).version.public, "pytorch")
    own = [path.name for path in sorted(GLUE.glob("*.cpp")) if path.name != "LmsPager.cpp"]
    assert len(own) >= 2
    _check_glue(tag, own, tmp_path, [])


@pytest.mark.parametrize("name", ["v2.6.0", "v1.13.1"])
def test_clang_tidy_of_the_cuda_glue(name: str, tmp_path: Path) -> None:
    tag = catalogue.find_tag(PATCHES, name, "pytorch")
    base = headers.fetch(tag, headers.C10, paths.cache_folder())
    runtime = cuda.unpack(PATCHES, tag.cuda, paths.cache_folder(), tmp_path / "cuda")
    files = [path.removeprefix("aten/src/ATen/") for path in series.new_files(PATCHES, tag)]
    own = [path for path in files if path.startswith("cuda/") and path.endswith(".cpp")]
    assert len(own) >= 2
    _check_glue(tag, own, base, [runtime.include])


def _check_glue(tag: catalogue.Tag, sources: list[str], base: Path, system: list[Path]) -> None:
    """Checks files of the glue as they are compiled for this tag; `base` has the wheel's headers."""
    graft = series.read_series(PATCHES, tag).graft
    with tempfile.TemporaryDirectory() as name:
        # The pager's headers are included as ATen/lms/..., where they lie in the patched tree.
        (Path(name) / "ATen").mkdir()
        (Path(name) / "ATen/lms").symlink_to(PATCHES / "src/pager")
        flags = [f"-std={tag.standard}", "-DNDEBUG", f"-I{name}", f"-I{GLUE.parent}"]
        flags += [f"-isystem{path}" for path in (*system, *(base / folder for folder in graft.include))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source: _check("clang-tidy", "--quiet", GLUE / source, "--", *flags), sources))
