"""Small patched wheels: all that the packaging looks at."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmsbuild import paths
from lmsbuild.conda import variants as recipe_variables
from lmsbuild.wheel.wheel import WheelFile, record_hash, record_text
from stand_ins import ABI

FOREIGN = "$ORIGIN/../../nvidia/cublas/lib:$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN:/usr/local/cuda/lib64"


def library(folder: Path, runpath: str, *flags: str, text: str = "") -> bytes:
    """A library that looks for others there."""
    target = folder / "library.so"
    words = ["g++", "-shared", "-fPIC", "-x", "c++", "-", f"-Wl,-rpath,{runpath}", "-o", target, *flags]
    subprocess.run(words, input=text.encode(), check=True)
    return target.read_bytes()


def c10(folder: Path, *, cxx11: bool = True) -> bytes:
    """A library with C++ strings of the new kind, or of the old one, in what it exports."""
    text = "#include <string>\nstd::string c10_name() { return std::string(64, 'c'); }\n"
    return library(folder, "$ORIGIN", f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11)}", text=text)


def write(
    folder: Path,
    *,
    version: str = "2.13.0+cpu.lms1",
    platform: str = "manylinux_2_34_x86_64",
    abi: str = ABI,
    package: str = "torch",
    requires: Sequence[str] = ("filelock",),
    headers: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    own: Mapping[str, bytes] | None = None,
    programs: str = "torchrun = torch.distributed.run:main",
    cuda: str = "12.4",
) -> Path:
    """Writes a wheel; `own` is what it has in place of what one of PyTorch has.

    It states `cuda`, but is a CUDA build only if `files` have the library that makes it one.
    """
    dist_info, python = f"{package}-{version}.dist-info", abi.removesuffix("m")
    metadata = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}", *headers]
    metadata += [f"Requires-Dist: {text}" for text in requires]
    torch = {
        "torch/__init__.py": b"",
        "torch/version.py": f"__version__ = '2.13.0'\ncuda = '{cuda}'\n".encode(),
        "torch/lms/__init__.py": b"",
        "torch/lib/libtorch_lms.so": library(folder, "$ORIGIN"),
        "torch/lib/libc10.so": c10(folder),
    }
    members = {
        **(torch if own is None else own),
        **(files or {}),
        f"{dist_info}/METADATA": "\n".join([*metadata, "", ""]).encode(),
        f"{dist_info}/WHEEL": b"Wheel-Version: 1.0\n",
        f"{dist_info}/LICENSE": b"a licence\n",
        f"{dist_info}/entry_points.txt": f"[console_scripts]\n{programs}\n\n[other]\na = b:c\n".encode(),
    }
    rows = [(name, record_hash(data), str(len(data))) for name, data in members.items()]
    members[f"{dist_info}/RECORD"] = record_text([*rows, (f"{dist_info}/RECORD", "", "")])
    path = folder / f"{package}-{version}-{python}-{abi}-{platform}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(info, data)
    return path


def write_tensorflow(
    folder: Path,
    *,
    package: str = "tensorflow_cpu",
    version: str = "2.14.1",
    cuda: str = "",
    top: str = "tensorflow",
    requires: Sequence[str] = (),
) -> Path:
    """One of TensorFlow, whose code is in the folder `top`."""
    programs = [f"tflite_convert = {top}.lite.python.tflite_convert:main", "tensorboard = tensorboard.main:run_main"]
    own = {
        f"{top}/__init__.py": b"",
        f"{top}/libtensorflow_framework.so.2": library(folder, FOREIGN),
        f"{top}/libtensorflow_lms.so": library(folder, "$ORIGIN"),
        f"{top}/python/lms/__init__.py": b"",
        f"{top}/python/platform/build_info.py": f"build_info = dict([('cuda_version', '{cuda}')])\n".encode(),
        f"{top}/THIRD_PARTY_NOTICES.txt": b"notices\n",
    }
    if not cuda:
        own[f"{top}/python/platform/build_info.py"] = b"build_info = dict([('is_cuda_build', False)])\n"
    return write(
        folder,
        package=package,
        version=f"{version}+lms1",
        headers=["License: Apache 2.0"],
        requires=requires,
        own=own,
        programs="\n".join(programs),
    )


def variants(wheel: Path) -> dict[str, str]:
    """The recipe's variables for a wheel."""
    recipes = paths.recipes_folder()
    with WheelFile(wheel) as file:
        return recipe_variables.describe(file, recipe_variables.layout(file.name, wheel.name, recipes), recipes)
