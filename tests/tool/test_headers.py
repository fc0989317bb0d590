"""The glue compiles against the headers of releases that it is not built for yet, and its decorator overrides everything.

The tags' own wheels are compiled against, and checked the same way, when they are built.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import headers
from headers import Headers
from lmsbuild import compile, cuda, paths, series
from lmsbuild.errors import UnforwardedMethod

PATCHES = paths.patches_folder()
RELEASES = [
    Headers(
        version="2.0.1",
        standard="c++17",
        file="torch-2.0.1-cp311-cp311-manylinux1_x86_64.whl",
        wheel="e617b1d0abaf6ced02dbb9486803abfef0d581609b09641b34fa315c9c40766d",
        record="3b67e388f2e1b335c1219ac798c87e22b014d6bf55c9898fec8e7321c82c6f3e",
    ),
    Headers(
        version="2.4.1",
        standard="c++17",
        file="torch-2.4.1-cp311-cp311-manylinux1_x86_64.whl",
        wheel="0b5f88afdfa05a335d80351e3cea57d38e578c8689f751d35e0ff36bce872113",
        record="b0a6319cfb40b8c8e98ca750d30c9e18d1d24ff0680346ec7a2b1759100108dd",
    ),
]


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_the_glue_compiles_against(release: Headers, tmp_path: Path) -> None:
    # The pager includes nothing of the framework, so it compiles the same everywhere.
    sources = ["aten/src/ATen/LmsTorch.cpp", "aten/src/ATen/cuda/LmsCuda.cpp"]
    base = headers.fetch(release, paths.cache_folder())
    objects = _compile(base, release.standard, tmp_path, sources)
    assert [*objects] == sources
    assert all(path.stat().st_size for path in objects.values())


def test_a_method_that_a_newer_header_adds_is_reported(tmp_path: Path) -> None:
    """The real glue, and the real header with one more method that has a default, as releases add them."""
    cache = paths.cache_folder()
    base = Path(shutil.copytree(headers.fetch(RELEASES[0], cache), tmp_path / "base", copy_function=os.link))
    header = base / "torch/include/c10/cuda/CUDACachingAllocator.h"
    text = header.read_text()
    known = "  virtual void emptyCache() = 0;\n"
    assert text.count(known) == 1
    header.unlink()  # the cache has the same file
    header.write_text(text.replace(known, known + "  virtual bool isNew(int) const { return false; }\n"))
    with pytest.raises(UnforwardedMethod, match=r"does not override (\w+::)+CUDAAllocator::isNew, which"):
        _compile(base, RELEASES[0].standard, tmp_path, ["aten/src/ATen/cuda/LmsCuda.cpp"])


def _compile(base: Path, standard: str, scratch: Path, sources: list[str]) -> dict[str, Path]:
    """Compiles some of the graft's sources against these headers."""
    graft = series.read_series(PATCHES, "pytorch").graft
    version = cuda.version_of((base / "torch/version.py").read_bytes())
    runtime = cuda.unpack(PATCHES, version, paths.cache_folder(), scratch / "cuda")
    tree = compile.Tree(_patched(scratch / "patched"), base, runtime)
    chosen = []
    for library in graft.libraries:
        own = tuple(source for source in library.sources if source in sources)
        if own:
            chosen.append(replace(library, sources=own))
    return compile.compile_sources(chosen, graft, standard, tree, scratch, lambda done: None)


def _patched(tree: Path) -> Path:
    """What the patch adds to the framework's tree."""
    for name, data in series.new_files(PATCHES, "pytorch", series.read_series(PATCHES, "pytorch")).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    return tree


def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    release = RELEASES[0]
    fetched = headers.fetch(release, paths.cache_folder())
    folder = Path(shutil.copytree(fetched, cache / fetched.name))
    damaged = folder / "torch/include/c10/cuda/CUDACachingAllocator.h"
    expected = damaged.read_bytes()
    damaged.write_text("")
    again: Callable[..., object] = lambda release, cache, fresh: shutil.copytree(fetched, fresh, dirs_exist_ok=True)
    monkeypatch.setattr(headers, "_unpack", again)
    assert headers.fetch(release, cache) == folder
    assert damaged.read_bytes() == expected
