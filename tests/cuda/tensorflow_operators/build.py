"""Builds the stand-ins for TensorFlow's GPU kernels: a library that a program loads with tf.load_op_library.

`library(folder, tag, wheel, include, simulator)` returns its path. It is compiled once for all tests, against the
headers of the release.
"""

from __future__ import annotations

from pathlib import Path

import tensorflow_gpu
from kept_library import kept_library
from lmsbuild import paths
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.elf import symbols
from lmsbuild.graft import compilation
from lmsbuild.patch import series

HERE = Path(__file__).resolve().parent
FLAGS = ("-O1", "-DNDEBUG", "-fPIC", "-Wall", "-Wextra", "-Werror")


def library(folder: Path, tag: Tag, wheel: Path, include: Path, simulator: Path) -> Path:
    """The library, in `folder`, which keeps it until the sources change.

    `wheel`: where the GPU wheel of the tag is unpacked. `include`: a folder with the headers of the same release.
    `simulator`: the folder with the simulated CUDA.
    """
    package = tensorflow_gpu.package(wheel)
    framework = package / "libtensorflow_framework.so.2"
    # The class of lists is in the last one until 2.9.
    libraries = [simulator / "libcuda.so.1", framework, package / "python" / "_pywrap_tensorflow_internal.so"]
    graft = series.read_series(paths.patches_folder(), tag).graft
    flags = [
        *compilation.compiler(),
        *FLAGS,
        f"-std={tag.standard}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(symbols.uses_new_strings(framework))}",
        *(f"-D{macro}" for macro in graft.define),
    ]

    made_for = (tag.name, tag.commit, flags, [each.name for each in libraries])

    def words() -> tuple[list[str], list[str]]:
        return [*flags, f"-isystem{include}"], ["-Wl,--as-needed", *map(str, libraries)]

    return kept_library(folder, f"libtensorflow_operators-{tag.name}", HERE, made_for, words)
