"""Compiles what the patch adds against the headers and libraries of the base wheel.

ci/gpu compiles with it too, on machines that have a framework, but neither a package that reads ELF files nor one that
downloads: such modules are imported where they are used.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lmsbuild import command
from lmsbuild.errors import BadSetting, BadSources, CompilerFailed, NoCompiler, NoSpace
from lmsbuild.graft import objects
from lmsbuild.patch.series import Graft, Library

if TYPE_CHECKING:
    from lmsbuild.fetch import cuda

# What keeps a fault in the library from becoming an attack, by kind of machine; "" is every one. A compiler that lacks one of them
# builds without it. No assertions of the C++ library, which cost time. Of a C library or compiler without level 3, 3 means 2.
HARDENING: Mapping[str, tuple[str, ...]] = {
    "": ("-fstack-protector-strong", "-fstack-clash-protection", "-Wp,-U_FORTIFY_SOURCE,-D_FORTIFY_SOURCE=3"),
    "x86_64": ("-fcf-protection=full",),
    "aarch64": ("-mbranch-protection=standard",),
}
LINKER_HARDENING = ("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,-z,text")
_DIAGNOSTIC = re.compile(r"(fatal error|error|undefined reference|cannot find)\b", re.IGNORECASE)


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of the usual ones. Raises NoCompiler, or BadSetting."""
    stated = os.environ.get("CXX", "")
    try:
        chosen = shlex.split(stated)
    except ValueError as error:
        raise BadSetting(
            f"CXX is {stated!r}, which a shell could not read either ({error}): mend it, or unset it"
        ) from error
    candidates = [chosen] if chosen else [["g++"], ["c++"], ["clang++"]]
    for candidate in candidates:
        if shutil.which(candidate[0]):
            program = (
                os.path.abspath(candidate[0]) if os.sep in candidate[0] else candidate[0]
            )  # it runs in other folders
            return [program, *candidate[1:]]
    looked = " ".join(candidate[0] for candidate in candidates)
    raise NoCompiler(
        f"no C++ compiler found (looked for {looked}): install one, for instance with `apt-get install g++` or "
        "`dnf install gcc-c++`, or name one in CXX"
    )


@functools.cache
def hardening(cxx: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of HARDENING for the machine that this compiler's programs run on, as far as it takes them."""
    machine = command.run([*cxx, "-dumpmachine"]).text.partition("-")[0]
    wanted = (*HARDENING[""], *HARDENING.get(machine, ()))

    def takes(flags: Sequence[str]) -> bool:
        words = [*cxx, "-Werror", *flags, "-O2", "-fsyntax-only", "-x", "c++", os.devnull]
        return command.run(words).code == 0

    return wanted if takes(wanted) else tuple(flag for flag in wanted if takes([flag]))


@dataclass(frozen=True)
class Tree:
    """Where the inputs of a build are. The libraries do not depend on these places."""

    patched: Path  # the patched tree
    base: Path  # the unpacked headers and libraries of the wheel
    cuda: cuda.Runtime | None  # None: no library needs it
    more_headers: tuple[Path, ...] = ()  # folders that are searched last
    new_strings: bool | None = None  # which of libstdc++'s two strings the wheel has; None: read off its library
    objects: Path | None = None  # the folder that keeps object files for later builds; None: none are kept


@dataclass(frozen=True)
class Unit:
    """What is compiled to one object file: one source, or those of a library that include the same large headers."""

    name: str  # of the object file, without its ending
    sources: tuple[str, ...]
    library: Library
    macros: tuple[str, ...]

    def write(self, patched: Path, scratch: Path) -> Path:
        """The file that is compiled, as programs that run in `scratch` know it."""
        if len(self.sources) == 1:
            return patched / self.sources[0]
        file = scratch / f"{self.name}.cc"
        file.write_text("".join(f'#include "{patched / source}"\n' for source in self.sources))
        return Path(file.name)


def units(libraries: Sequence[Library]) -> list[Unit]:
    """The object files of the libraries."""
    found = []
    for library in libraries:
        together = tuple(source for source in library.sources if source in library.together)
        alone = [(source,) for source in library.sources if source not in library.together]
        found += [Unit(Path(sources[0]).stem, sources, library, ()) for sources in (*alone, together) if sources]
        macros = library.cuda_define
        found += [Unit(Path(source).stem, (source,), library, macros) for source in library.cuda_sources]
    return found


def compile_sources(
    libraries: Sequence[Library],
    graft: Graft,
    standard: str,
    tree: Tree,
    scratch: Path,
    on_done: Callable[[int], None],
) -> dict[str, Path]:
    """Compiles the sources of the libraries and returns the object files, by source; several may share one.

    `on_done` gets how many object files are done. Raises NoCompiler, CompilerFailed, or UnforwardedMethod.
    """
    cxx = compiler()
    patched, base = _near(tree.patched, scratch), _near(tree.base, scratch)
    more = [_near(folder, scratch) for folder in tree.more_headers]
    flags = [
        f"-std={standard}",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        *hardening(tuple(cxx)),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(_new_strings(tree, graft))}",
        f"-ffile-prefix-map={patched}=.",
        f"-ffile-prefix-map={base}=.",
        f"-I{patched / graft.source_root}",
        *(f"-D{macro}" for macro in graft.define),
        *(f"-isystem{folder}" for folder in (*(base / name for name in graft.include), *more)),
    ]
    environment = {**os.environ, "TMPDIR": str(scratch)}  # a compiler that is killed leaves its temporary files there
    if tree.objects:
        objects.identity(tuple(cxx))  # once, before several threads ask for it
    made: dict[str, Path] = {}
    calls = []
    for unit in units(libraries):
        own = [f"-isystem{_near(_runtime(tree).include, scratch)}"] if unit.library.cuda else []
        target = scratch / f"{unit.name}.o"
        made |= dict.fromkeys(unit.sources, target)
        words = [*flags, *(f"-D{macro}" for macro in unit.macros), *own]
        source = unit.write(patched, scratch)
        calls.append(partial(objects.compile_source, cxx, words, source, target, tree.objects, environment))
    for finished in command.call_all(calls, os.cpu_count() or 1, on_done):
        _check(finished, patched, scratch)
    _check_made(cxx, made.values())
    for library in libraries:
        if library.decorator:
            from lmsbuild.elf import vtable

            vtable.check_decorator([made[source] for source in library.sources], library.decorator)
    return made


def build_libraries(
    libraries: Sequence[Library],
    graft: Graft,
    standard: str,
    tree: Tree,
    scratch: Path,
    on_done: Callable[[int], None],
) -> dict[str, Path]:
    """Compiles and links the libraries and returns their files, by the name that each has in the wheel.

    As `compile_sources`; `on_done` gets how many steps are done.
    """
    made = compile_sources(libraries, graft, standard, tree, scratch, on_done)
    compiled = len(set(made.values()))
    built = {}
    for library in libraries:
        own = dict.fromkeys(made[source] for source in (*library.sources, *library.cuda_sources))
        built[library.path] = _link(library, list(own), tree, scratch)
        on_done(compiled + len(built))
    return built


def stand_in(runtime: Path, name: str, scratch: Path) -> Path:
    """A library to link with instead of a CUDA runtime: it has the functions of `runtime`, which may be for another kind of
    machine, and the name under which the loader has to look for the wheel's.
    """
    from lmsbuild.elf import symbols

    folder = scratch / "runtime"
    folder.mkdir()
    source, target = folder / "runtime.cc", folder / name
    functions = symbols.exported_functions(runtime, "cuda")
    source.write_text("".join(f'extern "C" void {name}() {{}}\n' for name in functions))
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{target.name}"]
    words: list[str | Path] = [*compiler(), *flags, "-o", target, source]
    _check(command.run(words, folder=scratch), folder, scratch)
    return target


def _link(library: Library, objects: list[Path], tree: Tree, scratch: Path) -> Path:
    target = scratch / Path(library.path).name
    folder = _near(tree.base, scratch) / Path(library.path).parent
    words: list[str | Path] = [
        *compiler(),
        "-shared",
        "-pthread",
        "-o",
        target.name,
        *(_near(file, scratch) for file in objects),
        *LINKER_HARDENING,
        "-Wl,--as-needed",
        "-L.",  # libraries that were built before
        f"-L{folder}",
        *(f"-l{name}" for name in library.link),
        *(_near(file, scratch) for file in _runtime_library(library, tree)),
        "-ldl",
        "-Wl,-rpath,$ORIGIN",
        f"-Wl,-soname,{target.name}",
        "-Wl,--build-id=none",
        "-Wl,--no-undefined",
        f"-Wl,-rpath-link,{folder}",
        "-Wl,--strip-all",
    ]
    _check(command.run(words, folder=scratch), _near(tree.patched, scratch), scratch)
    _check_made(compiler(), [target])
    return target


def _near(path: Path, scratch: Path) -> Path:
    """The path as programs that run in `scratch` know it, for options in which a comma, a colon or an equals sign separates."""
    return path.relative_to(scratch) if path.is_relative_to(scratch) else path


def _new_strings(tree: Tree, graft: Graft) -> bool:
    if tree.new_strings is not None:
        return tree.new_strings
    from lmsbuild.elf import symbols

    return symbols.uses_new_strings(tree.base / graft.abi_library)


def _runtime(tree: Tree) -> cuda.Runtime:
    if tree.cuda is None:
        raise BadSources("a library takes CUDA's runtime, but requires nothing that shows which one: see series.toml")
    return tree.cuda


def _runtime_library(library: Library, tree: Tree) -> list[Path]:
    found = _runtime(tree).library if library.cuda else None
    return [found] if found else []


def _check_made(cxx: Sequence[str], files: Iterable[Path]) -> None:
    if missing := [file for file in files if not file.is_file()]:
        raise CompilerFailed(f"{shlex.join(cxx)} ended well, but made no {missing[0].name}: name a C++ compiler in CXX")


def _check(finished: command.Finished, patched: Path, scratch: Path) -> None:
    if finished.code == 0:
        return
    if finished.found_no_space:
        raise NoSpace(scratch.parent, "the compiler says so")
    lines = finished.error_text.splitlines()
    first = next((line for line in lines if _DIAGNOSTIC.search(line)), lines[0] if lines else "no message")
    first = first.replace(f"{patched}{os.sep}", "")
    raise CompilerFailed(
        f"the compiler failed (exit code {finished.code}): {first.strip()}\n"
        "  Run again with -v for all that it said; `lmsbuild doctor` checks the compiler.",
        finished.error_text,
    )
