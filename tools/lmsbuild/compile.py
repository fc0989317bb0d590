"""Compiles what the patch adds against the headers and libraries of the base wheel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from lmsbuild import command, symbols
from lmsbuild.errors import CompilerFailed, NoCompiler, NoSpace
from lmsbuild.series import Graft

_DIAGNOSTIC = re.compile(r"(fatal error|error|undefined reference|cannot find)\b", re.IGNORECASE)


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of the usual ones. Raises NoCompiler."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    candidates = [chosen] if chosen else [["g++"], ["c++"], ["clang++"]]
    for candidate in candidates:
        if shutil.which(candidate[0]):
            return candidate
    looked = " ".join(candidate[0] for candidate in candidates)
    raise NoCompiler(
        f"no C++ compiler found (looked for {looked}): install one, for instance with `apt-get install g++` or "
        "`dnf install gcc-c++`, or name one in CXX"
    )


def build_library(graft: Graft, patched: Path, base: Path, scratch: Path, on_done: Callable[[int], None]) -> Path:
    """Compiles and links the library and returns its file.

    `patched` holds the patched tree, `base` the unpacked headers and libraries of the wheel; both, and `scratch`, where
    the result lies, may be anywhere: the library does not depend on it. `on_done` gets how many steps are done.
    Raises NoCompiler or CompilerFailed.
    """
    cxx = compiler()
    abi = int(symbols.uses_new_strings(base / graft.abi_library))
    flags = [
        f"-std={graft.standard}",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-ffile-prefix-map={patched}=.",
        f"-ffile-prefix-map={base}=.",
        f"-I{patched / graft.source_root}",
        *(f"-isystem{base / folder}" for folder in graft.include),
    ]
    objects = [scratch / f"{Path(source).stem}.o" for source in graft.sources]
    commands: list[list[str | Path]] = [
        [*cxx, *flags, "-c", patched / source, "-o", target]
        for source, target in zip(graft.sources, objects, strict=True)
    ]
    for finished in command.run_all(commands, folder=scratch, on_finish=on_done):
        _check(finished, patched)
    library = scratch / Path(graft.library).name
    link: list[str | Path] = [
        *cxx,
        "-shared",
        "-pthread",
        "-o",
        library,
        *objects,
        f"-L{base / Path(graft.library).parent}",
        *(f"-l{name}" for name in graft.link),
        "-ldl",
        "-Wl,-rpath,$ORIGIN",
        f"-Wl,-soname,{library.name}",
        "-Wl,--build-id=none",
        "-Wl,--no-undefined",
        f"-Wl,-rpath-link,{base / Path(graft.library).parent}",
        "-Wl,--strip-all",
    ]
    _check(command.run(link, folder=scratch), patched)
    on_done(len(objects) + 1)
    return library


def _check(finished: command.Finished, patched: Path) -> None:
    if finished.code == 0:
        return
    if finished.found_no_space:
        raise NoSpace(patched.parent, "the compiler says so")
    lines = finished.error_text.splitlines()
    first = next((line for line in lines if _DIAGNOSTIC.search(line)), lines[0] if lines else "no message")
    first = first.replace(f"{patched}{os.sep}", "")
    raise CompilerFailed(
        f"the compiler failed (exit code {finished.code}): {first.strip()}\n"
        "  Run again with -v for all that it said; `lmsbuild doctor` checks the compiler."
    )
