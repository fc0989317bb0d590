"""Builds the stand-ins for TensorFlow's GPU kernels: a library that a program loads with tf.load_op_library.

`library(folder, tag, wheel, include, simulator)` returns its path. It is compiled once for all tests, against the
headers of the release.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lmsbuild import paths
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.elf import symbols
from lmsbuild.graft import compilation
from lmsbuild.patch import series

HERE = Path(__file__).resolve().parent
SIMULATOR = HERE.parent / "simulator"
FLAGS = ("-O1", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
KEPT_S = 24 * 3600


def library(folder: Path, tag: Tag, wheel: Path, include: Path, simulator: Path) -> Path:
    """The library, in `folder`, which keeps it until the sources change.

    `wheel`: where the GPU wheel of the tag is unpacked. `include`: a folder with the headers of the same release.
    `simulator`: the folder with the simulated CUDA.
    """
    framework = wheel / "tensorflow" / "libtensorflow_framework.so.2"
    graft = series.read_series(paths.patches_folder(), tag).graft
    flags = [
        *compilation.compiler(),
        *FLAGS,
        f"-std={tag.standard}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(symbols.uses_new_strings(framework))}",
        *(f"-D{macro}" for macro in graft.define),
        f"-I{SIMULATOR}",
    ]
    digest = hashlib.sha256(repr((tag.name, tag.commit, flags)).encode())
    sources = sorted(HERE.glob("*.cc"))
    for path in (*sources, *sorted(HERE.glob("*.h")), SIMULATOR / "sim.h"):
        digest.update(path.name.encode() + path.read_bytes())
    target = folder / f"libtensorflow_operators-{tag.name}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        unfinished = folder / f"{target.name}.{os.getpid()}"
        unfinished.mkdir(parents=True)
        objects = [unfinished / f"{source.stem}.o" for source in sources]
        compile_ = [*flags, f"-isystem{include}", "-c"]
        with ThreadPoolExecutor(2) as pool:
            words = ([*compile_, str(source), "-o", str(out)] for source, out in zip(sources, objects, strict=True))
            list(pool.map(_run, words))
        linked = [*map(str, objects), str(simulator / "libcuda.so.1"), str(framework)]
        _run([*compilation.compiler(), "-shared", *linked, "-o", str(unfinished / target.name)])
        (unfinished / target.name).replace(target)
        _remove(unfinished)
        _forget(folder, tag, target)
    os.utime(target)
    return target


def _forget(folder: Path, tag: Tag, kept: Path) -> None:
    for old in folder.glob(f"libtensorflow_operators-{tag.name}-*.so"):
        if old != kept and old.stat().st_mtime < time.time() - KEPT_S:
            old.unlink()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
