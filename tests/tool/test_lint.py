"""The linters, with the one configuration at the root."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmsbuild import catalogue, cuda, paths, series
from lmsbuild.wheel import parse_name

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"
PAGER = sorted((PATCHES / "pager").glob("*.cc"))
GLUE = PATCHES / "pytorch/files/aten/src/ATen"


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


def test_clang_format() -> None:
    _check("clang-format", "--dry-run", "-Werror", *_sources("patches", "tests", "tools"))


def test_clang_tidy_of_the_pager() -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: _check("clang-tidy", "--quiet", source, "--", "-std=c++14"), PAGER))


def test_clang_tidy_of_the_glue(built_wheel: Path, tmp_path: Path) -> None:
    _check_glue("LmsTorch.cpp", built_wheel, tmp_path, [])


def test_clang_tidy_of_the_cuda_glue(cuda_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(cuda_wheel) as wheel:
        version = cuda.version_of(wheel.read("torch/version.py"))
    runtime = cuda.unpack(PATCHES, version, paths.cache_folder(), tmp_path / "cuda")
    _check_glue("cuda/LmsCuda.cpp", cuda_wheel, tmp_path, [runtime.include])


def _check_glue(source: str, patched_wheel: Path, folder: Path, headers: list[Path]) -> None:
    """Checks a file of the glue as it is compiled against this wheel."""
    graft = series.read_series(PATCHES, "pytorch").graft
    with zipfile.ZipFile(patched_wheel) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("torch/include/")])
    # The pager's headers are included as ATen/lms/..., where they lie in the patched tree.
    tree = folder / "tree"
    (tree / "ATen").mkdir(parents=True)
    (tree / "ATen/lms").symlink_to(PATCHES / "pager")
    system = [f"-isystem{path}" for path in (*headers, *(folder / name for name in graft.include))]
    standard = catalogue.find_tag(PATCHES, parse_name(patched_wheel).version.public).standard
    own = [f"-I{tree}", f"-I{GLUE.parent}"]
    _check("clang-tidy", "--quiet", GLUE / source, "--", f"-std={standard}", "-DNDEBUG", *own, *system)
