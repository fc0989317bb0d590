"""Programs on the CUDA allocator of a release, with the glue and the pager, and the simulated CUDA.

They are compiled by $CXX, also for another kind of machine.
"""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import c10_cuda
import flavours
import headers
import kept
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.elf import symbols
from lmsbuild.fetch import apt, cuda
from lmsbuild.graft import compilation
from lmsbuild.patch import series

HERE = Path(__file__).parent
PATCHES = paths.patches_folder()
PAGERS_STANDARD = "c++14"  # as its CMakeLists.txt has it
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


def prepare(name: str) -> Allocator:
    """What there is for the tag. Skips where Debian's source package is needed and the machine cannot get it."""
    tag, wheel = _wheel(name)
    library = wheel / "torch/lib/libc10_cuda.so"
    has_runtime = c10_cuda.runtime_of(library) is None

    def fill(folder: Path) -> None:
        _patch(tag, folder)
        runtime = _unpack_cuda(tag, folder)
        if has_runtime:
            _build_c10_cuda(tag, wheel, runtime, folder)

    new = series.new_files(PATCHES, tag)
    words = [*compilation.compiler(), tag.standard, tag.cuda, Path(c10_cuda.__file__).read_text()]
    words += [f"{path} {hashlib.sha256(data).hexdigest()}" for path, data in new.items()]
    folder = kept.made(f"allocator-{name}", words, fill)
    if has_runtime:
        library = folder / "built" / library.name
    return Allocator(folder / "patched", wheel, folder / "cuda/include", tag.standard, library)


def prepare_elsewhere(name: str, c10: Path, runtime_library: Path, folder: Path) -> Allocator:
    """The same for another kind of machine, with these libc10.so and libcudart.so for it. Headers are the official wheel's."""
    tag, wheel = _wheel(name)
    _patch(tag, folder)
    runtime = _unpack_cuda(tag, folder)
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
    pager = pagers / f"pager-{flavour}-{'new' if _new_strings(base) else 'old'}.o"
    objects = [pager, *(program.with_name(f"{path.stem}.o") for path in sources[1:])]
    compile_ = [*kept.launcher(), *compilation.compiler(), *flags]
    missing = [
        [*compile_, *([f"-std={PAGERS_STANDARD}"] if output == pager else []), "-c", str(path), "-o", str(output)]
        for path, output in zip(sources, objects, strict=True)
        if not output.exists()
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(c10_cuda.run, missing))
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


def _wheel(name: str) -> tuple[catalogue.Tag, Path]:
    """The tag, and what is taken of its wheel."""
    tag = catalogue.find_tag(PATCHES, name, "pytorch")
    return tag, headers.fetch(tag, PARTS, paths.cache_folder())


def _patch(tag: catalogue.Tag, folder: Path) -> None:
    for path, data in series.new_files(PATCHES, tag).items():
        target = folder / "patched" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _unpack_cuda(tag: catalogue.Tag, folder: Path) -> cuda.Runtime:
    return cuda.unpack(PATCHES, tag.cuda, paths.cache_folder(), folder / "cuda")


def _build_c10_cuda(tag: catalogue.Tag, wheel: Path, runtime: cuda.Runtime, folder: Path) -> Path:
    try:
        c10_cuda.fetch(tag.name, PATCHES, paths.cache_folder(), folder / "upstream")
    except apt.NotDebian as error:
        pytest.skip(str(error))
    return c10_cuda.build(folder / "upstream", wheel, runtime, tag.standard, folder / "built")


def _flags(base: Allocator, flavour: str) -> list[str]:
    flags = [*flavours.flags(flavour), f"-std={base.standard}", "-fPIC", "-DNDEBUG"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(_new_strings(base))}"]
    flags += [f"-I{path}" for path in (base.patched / "aten/src", HERE / "simulator", HERE.parent / "pager")]
    flags += [f"-I{PATCHES / 'src/pager'}", f"-isystem{base.wheel / 'torch/include'}", f"-isystem{base.include}"]
    return flags


def _new_strings(base: Allocator) -> bool:
    return symbols.uses_new_strings(base.wheel / "torch/lib/libc10.so")
