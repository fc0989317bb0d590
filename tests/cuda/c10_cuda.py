"""libc10_cuda.so, which has PyTorch's CUDA allocator, for the simulated CUDA.

Wheels from 1.11 to 1.13 have CUDA's runtime inside that library, so nothing can stand in for the runtime. There the
library is built from upstream's source, as Debian carries it, against the wheel and with a runtime that is apart.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Symbol, SymbolTableSection

import kept
from lmsbuild.elf import symbols
from lmsbuild.fetch import cuda
from lmsbuild.graft import compilation
from lmsbuild.source import debian, source

FOLDER = "c10/cuda"
# The allocator before 2.0, the function that returns it, and the name and virtual table of its class.
GET = "_ZN3c104cuda20CUDACachingAllocator3getEv"
OBJECT = "_ZN3c104cuda20CUDACachingAllocator16device_allocatorE"
CLASS = (
    "_ZTSN3c104cuda20CUDACachingAllocator20CudaCachingAllocatorE",
    "_ZTVN3c104cuda20CUDACachingAllocator20CudaCachingAllocatorE",
)


def runtime_of(library: Path) -> str | None:
    """The CUDA runtime that the library asks for, such as "11.0"; None when it has its own."""
    with library.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection), f"{library} needs no libraries"
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
    return next((name.rpartition(".so.")[2] for name in needed if name.startswith("libcudart")), None)


def fetch(name: str, patches: Path, cache: Path, tree: Path) -> None:
    """Puts upstream's source at a tag that Debian has into `tree`. Raises as debian.fetch does."""
    package = source.read_origin(patches, "pytorch").debian[name]
    debian.unpack(debian.fetch(package, cache), package.sha256, tree, (FOLDER,))


def build(tree: Path, wheel: Path, runtime: cuda.Runtime, standard: str, folder: Path) -> Path:
    """The library, built in `folder` of the source in `tree` with the flags of upstream's CMakeLists.txt."""
    assert runtime.library is not None, "the catalogue has only the headers of this CUDA version"
    folder.mkdir()
    sources = [path for path in sorted((tree / FOLDER).rglob("*.cpp")) if "test" not in path.relative_to(tree).parts]
    strings = symbols.uses_new_strings(wheel / "torch/lib/libc10.so")
    words = [*compilation.compiler(), f"-std={standard}", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread"]
    words += [f"-D_GLIBCXX_USE_CXX11_ABI={int(strings)}", "-DC10_CUDA_BUILD_MAIN_LIB"]
    words += [f"-isystem{wheel / 'torch/include'}", f"-isystem{runtime.include}"]
    objects = [folder / f"{path.stem}.o" for path in sources]
    with ThreadPoolExecutor(2) as pool:
        pairs = zip(sources, objects, strict=True)
        compile_ = [*kept.launcher(), *words, "-c"]
        list(pool.map(run, ([*compile_, str(path), "-o", str(output)] for path, output in pairs)))
    library = folder / "libc10_cuda.so"
    linked = [*objects, wheel / "torch/lib/libc10.so", runtime.library]
    options = ["-shared", f"-Wl,-soname,{library.name}", "-Wl,--allow-shlib-undefined", "-o", str(library)]
    run([*words, *map(str, linked), *options])
    return library


def run(words: Sequence[str]) -> None:
    """Runs a compiler."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr[-5000:]}"


def exported(library: Path) -> set[str]:
    """The functions and variables of the namespace that the library exports. Not those of headers: which of them there
    are depends on what the compiler has inlined."""
    return {
        symbol.name
        for symbol in _symbols(library, ".dynsym")
        if symbol["st_info"]["bind"] == "STB_GLOBAL" and symbol["st_shndx"] != "SHN_UNDEF" and "4cuda" in symbol.name
    }


def allocator_sizes(library: Path) -> dict[str, int]:
    """The sizes of OBJECT and CLASS in the library."""
    return {
        symbol.name: symbol["st_size"] for symbol in _symbols(library, ".symtab") if symbol.name in (OBJECT, *CLASS)
    }


def _symbols(library: Path, section: str) -> list[Symbol]:
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(section)
        assert isinstance(table, SymbolTableSection), f"{library} has no {section}"
        return list(table.iter_symbols())
