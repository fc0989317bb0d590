"""One OpenMP runtime in a process: the environment's, in place of the copy of GCC's that a wheel carries.

Two runtimes in one process have two pools of threads, and may deadlock after a fork. Conda's packages share `libgomp.so.1` of the
environment, which is GCC's or LLVM's as its package `_openmp_mutex` says.
"""

from __future__ import annotations

import re
from pathlib import Path

from lmsbuild.conda import runpath

SHARED = "libgomp.so.1"
_RUNTIME = re.compile(r"libgomp(?:-[0-9a-f]+)?\.so\.1(?:\.\d+)*")  # with the hash by which auditwheel renames it


def is_runtime(path: str) -> bool:
    """Whether a file is GCC's runtime, by its name."""
    return _RUNTIME.fullmatch(path.rpartition("/")[2]) is not None


def use_shared(library: Path, elf: runpath.Elf) -> bool:
    """Makes a library that needs such a copy need the environment's; whether it needs one."""
    names = [name for name in elf.needed if is_runtime(name)]
    for name in names:
        if name != SHARED:
            runpath.replace_needed(library, name, SHARED)
    return bool(names)
