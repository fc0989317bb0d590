"""The glue compiles against the headers of a sample of releases, and its decorator overrides everything in each.

The samples have both sides of each change of an interface; all but every fourth release of them are tried before a release.
`lmsbuild tag check --all` takes every one. Those whose wheels are built in other tests are left out.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headers
import kept
from lmsbuild import git_command, paths
from lmsbuild.catalogue import catalogue
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.errors import BadSources, UnforwardedMethod
from lmsbuild.fetch import blobs, cuda, ranged
from lmsbuild.graft import compilation
from lmsbuild.graft import graft as grafting
from lmsbuild.patch import series
from lmsbuild.patch.series import Graft
from lmsbuild.wheel.target import target_for

pytestmark = pytest.mark.build  # fetches parts of official wheels

PATCHES = paths.patches_folder()
CUDA = "aten/src/ATen/cuda/"

# What changes: from 2.0 on the set of virtual methods of the allocator, before the functions beside it.
CUDA_SAMPLE = (
    *("v1.3.1", "v1.5.1", "v1.8.1", "v1.9.1", "v1.12.1"),
    *("v2.1.2", "v2.2.2", "v2.3.1", "v2.5.1", "v2.7.1", "v2.8.0", "v2.9.1", "v2.10.0", "v2.12.1", "v2.14.1"),
)
NEWEST = "v2.15.0"  # whose wheel test_cuda_wheels.py builds before a release
# What changes: the observer's interface, how operators are registered, kinds of tensors. LMS_TEST_GLUE_TAGS, such as
# "v1.8.0 v1.12.1", names more.
WHOLE_SAMPLE = ("v1.1.0", "v1.3.1", "v1.7.1", "v1.10.2", "v2.0.1", "v2.4.1")


def _sample(names: Sequence[str], also: Sequence[str]) -> list[Any]:
    """All of the names, most of them for releases, and those that always run."""
    marked = [pytest.param(name, marks=() if n % 4 == 0 else pytest.mark.release) for n, name in enumerate(names)]
    return [*marked, *also]


@pytest.fixture(scope="module")
def links() -> headers.Links:
    return functools.cache(lambda: ranged.links("torch"))


def _tag(name: str) -> Tag:
    return catalogue.find_tag(PATCHES, name, "pytorch")


@pytest.mark.parametrize("name", _sample(CUDA_SAMPLE, [NEWEST]))
def test_the_files_for_cuda_compile_against(name: str, links: headers.Links, tmp_path: Path) -> None:
    base = headers.fetch(_tag(name), headers.C10, paths.cache_folder(), links)
    objects = _compile(_tag(name), base, tmp_path, lambda source: source.startswith(CUDA))
    assert len(objects) >= 2
    assert all(path.stat().st_size for path in objects.values())


@pytest.mark.parametrize("name", _sample(WHOLE_SAMPLE, os.environ.get("LMS_TEST_GLUE_TAGS", "").split()))
def test_the_glue_compiles_against(name: str, links: headers.Links, tmp_path: Path) -> None:
    # The pager includes nothing of the framework, so it compiles the same everywhere.
    base = headers.fetch(_tag(name), headers.EVERYTHING, paths.cache_folder(), links)
    objects = _compile(_tag(name), base, tmp_path, lambda source: not source.endswith("LmsPager.cpp"))
    assert len(objects) >= 3
    assert all(path.stat().st_size for path in objects.values())


def test_a_method_that_a_newer_header_adds_is_reported(links: headers.Links, tmp_path: Path) -> None:
    """The real glue, and the real header with one more method that has a default, as releases add them."""
    tag = _tag("v2.1.2")
    fetched = headers.fetch(tag, headers.C10, paths.cache_folder(), links)
    base = Path(shutil.copytree(fetched, tmp_path / "base", copy_function=os.link))
    header = base / "torch/include/c10/cuda/CUDACachingAllocator.h"
    text = header.read_text()
    known = "  virtual void emptyCache() = 0;\n"
    assert text.count(known) == 1
    header.unlink()  # the cache has the same file
    header.write_text(text.replace(known, known + "  virtual bool isNew(int) const { return false; }\n"))
    with pytest.raises(UnforwardedMethod, match=r"does not override (\w+::)+CUDAAllocator::isNew, which"):
        _compile(tag, base, tmp_path, lambda source: source.endswith("LmsAllocatorInterface.cpp"))


def _compile(tag: Tag, base: Path, scratch: Path, chosen: Callable[[str], bool]) -> dict[str, Path]:
    """Compiles some of the graft's sources for this tag against these headers."""
    graft = series.read_series(PATCHES, tag).graft
    runtime = cuda.unpack(PATCHES, tag.cuda, paths.cache_folder(), scratch / "cuda")
    tree = compilation.Tree(_patched(tag, scratch / "patched"), base, runtime, objects=kept.folder() / "objects")
    libraries = []
    for library in graft.libraries:
        own = tuple(source for source in library.sources if chosen(source))
        if own:
            libraries.append(replace(library, sources=own))
    return compilation.compile_sources(libraries, graft, tag.standard, tree, scratch, lambda done: None)


def _patched(tag: Tag, tree: Path) -> Path:
    """What the patch adds to the framework's tree."""
    for name, data in series.new_files(PATCHES, tag).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    return tree


def test_a_damaged_file_in_the_cache_is_fetched_again(
    links: headers.Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    tag = _tag("v2.1.2")
    fetched = headers.fetch(tag, headers.C10, paths.cache_folder(), links)
    folder = Path(shutil.copytree(fetched, cache / fetched.name))
    damaged = folder / "torch/include/c10/cuda/CUDACachingAllocator.h"
    expected = damaged.read_bytes()
    damaged.write_text("")
    again: Callable[..., object] = lambda tag, name, wanted, cache, fresh, links: shutil.copytree(
        fetched, fresh, dirs_exist_ok=True
    )
    monkeypatch.setattr(headers, "_unpack", again)
    assert headers.fetch(tag, headers.C10, cache) == folder
    assert damaged.read_bytes() == expected


@pytest.mark.parametrize("cached", [False, True])
def test_headers_that_a_wheel_lacks_are_those_of_another(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = "tensorflow/include/tensorflow/core/common_runtime/gpu/gpu_device.h", b"class BaseGPUDevice;\n"
    graft, options, tree = _lacking(path, data, tmp_path)
    asked = []

    def read(tag: Tag, paths: Mapping[str, str], *_: object) -> dict[str, bytes]:
        asked.append(tag.full_name)
        return dict.fromkeys(paths, data)

    monkeypatch.setattr(grafting, "read_members", read)
    if cached:
        blobs.store(options.cache, graft.headers, {path: data})
    grafting._take_headers(graft, options, tree)
    assert (tree.base / path.replace("tensorflow/", "tensorflow_core/", 1)).read_bytes() == data
    assert asked == ([] if cached else ["tensorflow:v2.2.0"])
    asked.clear()
    grafting._take_headers(graft, options, tree)
    assert asked == []  # they were kept


def test_another_header_than_series_toml_says_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "tensorflow/include/tensorflow/core/common_runtime/gpu/gpu_device.h"
    graft, options, tree = _lacking(path, b"class BaseGPUDevice;\n", tmp_path)
    monkeypatch.setattr(grafting, "read_members", lambda *_: {path: b"class BaseGPUDevice { int more; };\n"})
    with pytest.raises(BadSources, match=r"gpu_device\.h of v2\.2\.0 has another hash than series\.toml says"):
        grafting._take_headers(graft, options, tree)
    assert not list(tree.base.rglob("*.h"))


def _lacking(path: str, data: bytes, folder: Path) -> tuple[Graft, grafting.Options, compilation.Tree]:
    """What a build of 2.1.0 begins with, of which one header is asked for."""
    tag = catalogue.find_tag(PATCHES, "v2.1.0", "tensorflow")
    graft = series.read_series(PATCHES, tag).graft
    assert (graft.headers_of, graft.lacking[path]) == ("v2.2.0", path.replace("tensorflow/", "tensorflow_core/", 1))
    options = grafting.Options(tag, target_for(None), PATCHES, folder / "cache", folder / "output", None)
    tree = compilation.Tree(folder / "patched", folder / "base", None)
    return replace(graft, headers={path: git_command.blob_hash(data)}), options, tree
