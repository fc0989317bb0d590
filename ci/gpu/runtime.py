"""CUDA's runtime on this machine, to compile and link against: in the nvidia-* packages beside torch, or a toolkit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.errors import NoRuntime

# The runtime's headers, and those of the compiler that they include, which the runtime's package does not have.
HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h")
_USUAL = Path("/usr/local/cuda")


@dataclass(frozen=True)
class Runtime:
    """Where the headers are, and the library: as lmsbuild's compiler takes it."""

    include: Path  # with the runtime's own headers
    library: Path
    more_headers: tuple[Path, ...] = ()  # folders with what those include


def find(torch_folder: Path, cuda: str, environment: Mapping[str, str], given: Sequence[Path] = ()) -> Runtime:
    """The runtime of the release `cuda`, such as 13.0, that torch is built for.

    Folders with headers that were given come first, then the packages that match torch, then the toolkit that the
    environment names (CUDA_HOME, CUDA_PATH, nvcc), then what Triton carries, then the usual place of a toolkit. Raises
    NoRuntime with all that was searched.
    """
    roots = [*sorted((torch_folder.parent / "nvidia").glob("*"), reverse=True), *_toolkits(environment)]
    triton = torch_folder.parent / "triton" / "backends" / "nvidia"
    folders = [*given, *_below([*roots, triton, _USUAL], ("include", "targets/*/include"))]
    include: list[Path] = []
    for header in HEADERS:
        folder = _first(header, folders).parents[header.count("/")]
        if folder not in include:
            include.append(folder)
    name = f"libcudart.so.{cuda.split('.')[0]}"
    places = _below([*roots, _USUAL], ("lib", "lib64", "targets/*/lib"))
    return Runtime(include[0], _first(name, places), tuple(include[1:]))


def _first(name: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    looked = "".join(f"\n    {folder}" for folder in folders)
    raise NoRuntime(
        f"no {name} on this machine: install the packages nvidia-cuda-runtime and nvidia-cuda-crt (for CUDA 12 "
        f"nvidia-cuda-runtime-cu12 and nvidia-cuda-nvcc-cu12) that match torch, or a CUDA toolkit, and set CUDA_HOME. "
        f"Searched:{looked}"
    )


def _toolkits(environment: Mapping[str, str]) -> list[Path]:
    roots = [Path(environment[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    compiler = shutil.which("nvcc", path=environment.get("PATH", os.defpath))
    if compiler:
        roots.append(Path(compiler).resolve().parent.parent)
    return roots


def _below(roots: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    return [folder for root in roots for pattern in patterns for folder in sorted(root.glob(pattern))]
