"""Builds the simulated CUDA, and programs on it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import c10_cuda
import headers
from lmsbuild import catalogue, compile, cuda, debian, paths, series, symbols

HERE = Path(__file__).parent
PATCHES = paths.patches_folder()
FLAVOURS = {  # as the simulation's own
    "plain": ["-O2"],
    "address": ["-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fno-omit-frame-pointer", "-fsanitize=thread"],
}
# What is taken of the official wheels; libc10_cuda.so of older ones needs the last two.
PARTS = ("torch/include/c10/", "torch/lib/libc10", "torch/lib/libcudart-", "torch/lib/libgomp-")


def _load_build() -> ModuleType:
    # By path: the name `build` is taken elsewhere.
    spec = importlib.util.spec_from_file_location("simulator_build", HERE / "simulator" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


simulator_build = _load_build()


@pytest.fixture(scope="session")
def simulator(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """simulator(flavour="plain", without=()): the folder of the libraries, built if need be."""
    cache = pytestconfig.cache
    folder = Path(cache.mkdir("simulator")) if cache is not None else tmp_path_factory.mktemp("simulator")

    def build(flavour: str = "plain", without: Sequence[str] = ()) -> Path:
        return simulator_build.libraries(folder, flavour, without)

    return build


@pytest.fixture(scope="session")
def simulated_cuda(simulator: Callable[..., Path]) -> Path:
    """The folder of the libraries without sanitizers."""
    return simulator()


@dataclass(frozen=True)
class Allocator:
    """What programs on the allocator of a release are compiled with and linked to."""

    patched: Path  # the patched tree
    wheel: Path  # the official wheel's headers and libraries of c10
    include: Path  # CUDA's headers
    standard: str
    c10_cuda: Path  # libc10_cuda.so: the wheel's, or one that was built


@pytest.fixture(scope="session")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Allocator]:
    """allocator(tag). Skips where Debian's source package is needed and the machine cannot get it."""
    known: dict[str, Allocator] = {}

    def fetch(name: str) -> Allocator:
        if name not in known:
            known[name] = _allocator(name, tmp_path_factory.mktemp(f"allocator-{name}"))
        return known[name]

    return fetch


def _allocator(name: str, folder: Path) -> Allocator:
    tag = catalogue.find_tag(PATCHES, name)
    patched = folder / "patched"
    for path, data in series.new_files(PATCHES, tag).items():
        (patched / path).parent.mkdir(parents=True, exist_ok=True)
        (patched / path).write_bytes(data)
    wheel = headers.fetch(tag, PARTS, paths.cache_folder())
    runtime = cuda.unpack(PATCHES, tag.cuda, paths.cache_folder(), folder / "cuda")
    library = wheel / "torch/lib/libc10_cuda.so"
    if c10_cuda.runtime_of(library) is None:
        try:
            c10_cuda.fetch(name, PATCHES, paths.cache_folder(), folder / "upstream")
        except debian.NotDebian as error:
            pytest.skip(str(error))
        library = c10_cuda.build(folder / "upstream", wheel, runtime, tag.standard, folder / "built")
    return Allocator(patched, wheel, runtime.include, tag.standard, library)


@pytest.fixture(scope="session")
def on_allocator(
    allocator: Callable[[str], Allocator], simulator: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """on_allocator(source, tag, flavour="plain"): a program of this folder with the glue and the pager, on the
    libc10_cuda.so of the tag and the simulated CUDA. Compiled if need be."""
    folder = tmp_path_factory.mktemp("on-allocator")

    def build(source: str, tag: str, flavour: str = "plain") -> Path:
        own = folder / f"{tag}-{flavour}"
        own.mkdir(exist_ok=True)
        program = own / Path(source).stem
        if not program.exists():
            _build_program(allocator(tag), HERE / source, simulator(flavour), flavour, program)
        return program

    return build


@pytest.fixture(scope="session")
def shared_library(
    allocator: Callable[[str], Allocator], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """shared_library(source, tag): a library of this folder that uses the allocator. Compiled if need be."""
    folder = tmp_path_factory.mktemp("shared-library")

    def build(source: str, tag: str) -> Path:
        library = folder / f"{Path(source).stem}-{tag}.so"
        if not library.exists():
            c10_cuda.run(
                [
                    *compile.compiler(),
                    *_flags(allocator(tag), "plain"),
                    "-shared",
                    str(HERE / source),
                    "-o",
                    str(library),
                ]
            )
        return library

    return build


def _flags(base: Allocator, flavour: str) -> list[str]:
    strings = symbols.uses_new_strings(base.wheel / "torch/lib/libc10.so")
    flags = [f"-std={base.standard}", "-g1", *FLAVOURS[flavour], "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror"]
    flags += ["-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={int(strings)}"]
    flags += [f"-I{path}" for path in (base.patched / "aten/src", HERE / "simulator", HERE.parent / "pager")]
    flags += [f"-I{PATCHES / 'pager'}", f"-isystem{base.wheel / 'torch/include'}", f"-isystem{base.include}"]
    return flags


def _build_program(base: Allocator, source: Path, simulator: Path, flavour: str, program: Path) -> None:
    libraries = base.wheel / "torch/lib"
    flags = _flags(base, flavour)
    glue = base.patched / "aten/src/ATen"
    sources = [glue / "LmsPager.cpp", *sorted((glue / "cuda").glob("*.cpp")), source]
    objects = [program.with_name(f"{path.stem}.o") for path in sources]
    missing = [pair for pair in zip(sources, objects, strict=True) if not pair[1].exists()]
    with ThreadPoolExecutor(2) as pool:
        words = ([*compile.compiler(), *flags, "-c", str(path), "-o", str(output)] for path, output in missing)
        list(pool.map(c10_cuda.run, words))
    # The simulation stands before c10 in the order in which the loader looks for libcudart, so it is found there.
    release = c10_cuda.runtime_of(base.c10_cuda)
    assert release is not None, f"{base.c10_cuda} has CUDA's runtime inside"
    linked = [simulator / f"libcudart.so.{release}", simulator / "libcuda.so.1"]
    linked += [base.c10_cuda, libraries / "libc10.so"]
    paths_at_run_time = [f"-Wl,-rpath,{path}" for path in (simulator, base.c10_cuda.parent, libraries)]
    options = [*paths_at_run_time, "-Wl,--allow-shlib-undefined", "-ldl", "-o", str(program)]
    c10_cuda.run([*compile.compiler(), *flags, *map(str, [*objects, *linked]), *options])
