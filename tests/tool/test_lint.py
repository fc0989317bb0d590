"""The linters, with the one configuration at the root."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headers
import kept
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import cuda
from lmsbuild.patch import series
from lmsbuild.wheel.wheel import file_sha256
from presets import Builds

pytestmark = pytest.mark.build  # the type checker and clang-tidy take minutes

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"
PAGER = sorted(path for path in (PATCHES / "src/pager").rglob("*.cc") if path.name != "all.cc")
WORKFLOWS = sorted((ROOT / "ci/github").glob("*.yml"))
HEADERS = sorted((PATCHES / "src/pager").rglob("*.h"))
GLUE = PATCHES / "src/pytorch/aten/src/ATen"


def _check(*words: str | Path) -> None:
    tool = Path(sys.executable).with_name(str(words[0]))
    done = subprocess.run([tool, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, words))}\n{done.stdout[-20000:]}{done.stderr[-5000:]}")


def _tidy(sources: Sequence[Path], *words: str | Path, files: Sequence[Path], made_of: Sequence[str] = ()) -> None:
    """Runs clang-tidy on sources but those in which it found nothing before, with the same `files` and what the words stand for."""
    files = [Path(__file__), ROOT / ".clang-tidy", *files]  # this file has the flags
    same = [importlib.metadata.version("clang-tidy"), *made_of, *map(file_sha256, files)]

    def tidy(source: Path) -> None:
        key = [source.name, file_sha256(source), *same]
        kept.made(f"tidy-{source.stem}", key, lambda _: _check("clang-tidy", "--quiet", source, *words))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(tidy, sources))


def _sources(*folders: str) -> list[Path]:
    found = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in (".h", ".cc", ".cpp")]
    assert found
    return sorted(found)


def test_ruff_check() -> None:
    _check("ruff", "check", ".")


def test_ruff_format() -> None:
    _check("ruff", "format", "--check", ".")


def test_mypy() -> None:
    _check("mypy", "--cache-dir", kept.folder() / "mypy")


def test_schema_of_the_workflows() -> None:
    _check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)


def test_safety_of_the_workflows() -> None:
    _check("zizmor", "--offline", "--quiet", "--config", "ci/zizmor.yml", *WORKFLOWS)


def test_clang_format() -> None:
    _check("clang-format", "--dry-run", "-Werror", *_sources("patches", "tests", "tools"))


def test_clang_tidy_of_the_pager(builds: Builds) -> None:
    commands = builds.folder("plain")
    project = [PATCHES / "src/pager" / name for name in ("CMakeLists.txt", "CMakePresets.json")]
    _tidy(PAGER, "-p", commands, files=[*project, *HEADERS])


def test_clang_tidy_of_the_glue() -> None:
    tag = catalogue.find_tag(PATCHES, "v2.13.0", "pytorch")
    base = headers.fetch(tag, headers.EVERYTHING, paths.cache_folder())
    own = [path.name for path in sorted(GLUE.glob("*.cpp")) if path.name != "LmsPager.cpp"]
    assert len(own) >= 2
    _check_glue(tag, own, base, [])


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
        # What the tag's official wheel and CUDA have never changes.
        made_of = [tag.full_name, tag.standard, tag.cuda, *map(str, graft.include)]
        files = [*HEADERS, *sorted(GLUE.rglob("*.h"))]
        _tidy([GLUE / source for source in sources], "--", *flags, files=files, made_of=made_of)
