"""Programs on the CUDA allocator of a release, with the glue and the pager, and the simulated CUDA.

They are compiled by $CXX, also for another kind of machine.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import c10_cuda
import headers
import presets
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.elf import symbols
from lmsbuild.fetch import apt, cuda
from lmsbuild.graft import compilation
from lmsbuild.patch import series

HERE = Path(__file__).parent
PATCHES = paths.patches_folder()
# What is taken of the official wheels; libc10_cuda.so of older ones needs the last two.
PARTS = ("torch/include/c10/", "torch/lib/libc10", "torch/lib/libcudart-", "torch/lib/libgomp-")


@dataclass(frozen=True)
class Allocator:
    """What programs on the allocator of a release are compiled with and linked to."""

    patched: Path  # the patched tree
    wheel: Path  # the headers and libraries of c10, laid out as in the official wheel
    include: Path  # CUDA's headers
    standard: str
    c10_cuda: Path  # libc10_cuda.so: the wheel's, or one that was built


def prepare(name: str, folder: Path) -> Allocator:
    """What there is for the tag. Skips where Debian's source package is needed and the machine cannot get it."""
    tag, wheel, runtime = _inputs(name, folder)
    library = wheel / "torch/lib/libc10_cuda.so"
    if c10_cuda.runtime_of(library) is None:
        library = _build_c10_cuda(tag, wheel, runtime, folder)
    return Allocator(folder / "patched", wheel, runtime.include, tag.standard, library)


def prepare_elsewhere(name: str, c10: Path, runtime_library: Path, folder: Path) -> Allocator:
    """The same for another kind of machine, with these libc10.so and libcudart.so for it. Headers are the official wheel's."""
    tag, wheel, runtime = _inputs(name, folder)
    base = folder / "base"
    (base / "torch/lib").mkdir(parents=True)
    (base / "torch/include").symlink_to(wheel / "torch/include")
    shutil.copyfile(c10, base / "torch/lib/libc10.so")
    library = _build_c10_cuda(tag, base, replace(runtime, library=runtime_library), folder)
    return Allocator(folder / "patched", base, runtime.include, tag.standard, library)


def build(base: Allocator, source: Path, simulator: Path, flavour: str, program: Path, pagers: Path) -> None:
    """Compiles and links a program beside whose object files those of the glue are, or come to be.

    The pager, which includes nothing of the framework, is compiled once for all releases, into the folder `pagers`.
    """
    libraries = base.wheel / "torch/lib"
    flags = _flags(base, flavour)
    glue = base.patched / "aten/src/ATen"
    common = [glue / f"{name}.cpp" for name in ("LmsDevices", "LmsResidentBlock")]
    sources = [glue / "LmsPager.cpp", *common, *sorted((glue / "cuda").glob("*.cpp")), source]
    strings = "new" if _new_strings(base) else "old"
    objects = [pagers / f"pager-{flavour}-{base.standard}-{strings}.o"]
    objects += [program.with_name(f"{path.stem}.o") for path in sources[1:]]
    missing = [pair for pair in zip(sources, objects, strict=True) if not pair[1].exists()]
    with ThreadPoolExecutor(2) as pool:
        words = ([*compilation.compiler(), *flags, "-c", str(path), "-o", str(output)] for path, output in missing)
        list(pool.map(c10_cuda.run, words))
    # The simulation stands before c10 in the order in which the loader looks for libcudart, so it is found there.
    linked = [simulator / f"libcudart.so.{runtime(base)}", simulator / "libcuda.so.1"]
    linked += [base.c10_cuda, libraries / "libc10.so"]
    paths_at_run_time = [f"-Wl,-rpath,{path}" for path in (simulator, base.c10_cuda.parent, libraries)]
    options = [*paths_at_run_time, "-Wl,--allow-shlib-undefined", "-ldl", "-o", str(program)]
    c10_cuda.run([*compilation.compiler(), *flags, *map(str, [*objects, *linked]), *options])


def runtime(base: Allocator) -> str:
    """The release of CUDA's runtime that the allocator needs."""
    release = c10_cuda.runtime_of(base.c10_cuda)
    assert release is not None, f"{base.c10_cuda} has CUDA's runtime inside"
    return release


def build_library(base: Allocator, source: Path, library: Path) -> None:
    """Compiles a library that uses the allocator."""
    words = [*compilation.compiler(), *_flags(base, "plain"), "-shared", str(source), "-o", str(library)]
    c10_cuda.run(words)


def _inputs(name: str, folder: Path) -> tuple[catalogue.Tag, Path, cuda.Runtime]:
    tag = catalogue.find_tag(PATCHES, name, "pytorch")
    for path, data in series.new_files(PATCHES, tag).items():
        target = folder / "patched" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    wheel = headers.fetch(tag, PARTS, paths.cache_folder())
    return tag, wheel, cuda.unpack(PATCHES, tag.cuda, paths.cache_folder(), folder / "cuda")


def _build_c10_cuda(tag: catalogue.Tag, wheel: Path, runtime: cuda.Runtime, folder: Path) -> Path:
    try:
        c10_cuda.fetch(tag.name, PATCHES, paths.cache_folder(), folder / "upstream")
    except apt.NotDebian as error:
        pytest.skip(str(error))
    return c10_cuda.build(folder / "upstream", wheel, runtime, tag.standard, folder / "built")


def _flags(base: Allocator, flavour: str) -> list[str]:
    flags = [*presets.flags(flavour), f"-std={base.standard}", "-fPIC", "-DNDEBUG"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(_new_strings(base))}"]
    flags += [f"-I{path}" for path in (base.patched / "aten/src", HERE / "simulator", HERE.parent / "pager")]
    flags += [f"-I{PATCHES / 'src/pager'}", f"-isystem{base.wheel / 'torch/include'}", f"-isystem{base.include}"]
    return flags


def _new_strings(base: Allocator) -> bool:
    return symbols.uses_new_strings(base.wheel / "torch/lib/libc10.so")
