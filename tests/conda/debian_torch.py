"""A base package for ppc64le out of Debian's libtorch and torch, with its files laid out as conda's pytorch has them.

The libraries are Debian's but for their names: a package has `libc10.so` where Debian has `libc10.so.1.13`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from machines import POWER, fetch_packages
from stand_ins import make

TAG = "v1.13.1"
PYTHON = "3.11"
PLACE = f"lib/python{PYTHON}/site-packages"
LIBRARIES = ("c10", "torch", "torch_cpu")
# What Debian's build needs beside the framework itself. Its libraries name others, too, of which they use nothing.
NEEDED = {
    "libblas3": "blas/libblas.so.3",
    "libcpuinfo0": "libcpuinfo.so.0",
    "libfmt9": "libfmt.so.9",
    "libgflags2.2": "libgflags.so.2.2",
    "libgfortran5": "libgfortran.so.5",
    "libgloo0": "../libgloo.so.0",
    "libgoogle-glog0v6": "libglog.so.1",
    "libhiredis0.14": "libhiredis.so.0.14",
    "libibverbs1": "libibverbs.so.1",
    "liblapack3": "lapack/liblapack.so.3",
    "libnl-3-200": "../../../lib/powerpc64le-linux-gnu/libnl-3.so.200",
    "libnl-route-3-200": "libnl-route-3.so.200",
    "libnuma1": "libnuma.so.1",
    "libonnx1": "libonnx.so.1",
    "libprotobuf32": "libprotobuf.so.32",
    "libsleef3": "libsleef.so.3",
    "libtensorpipe0": "libtensorpipe.so.0",
    "libuv1": "libuv.so.1",
    "libzstd1": "libzstd.so.1",
    "zlib1g": "../../../lib/powerpc64le-linux-gnu/libz.so.1",
}
WITH_THEM = ("libonnx_proto.so.1",)
UNUSED = (
    *("libavcodec.so.59", "libavformat.so.59", "libavutil.so.57", "libswresample.so.4", "libswscale.so.6"),
    *("libleveldb.so.1d", "liblmdb.so.0", "libsnappy.so.1", "libzmq.so.5"),
    *(
        f"libopencv_{part}.so.406"
        for part in ("calib3d", "core", "dnn", "features2d", "flann", "highgui", "imgcodecs", "imgproc")
    ),
    *(f"libopencv_{part}.so.406" for part in ("optflow", "video", "videoio", "ximgproc")),
)
FRAMEWORK = ("libtorch1.13", "libtorch-dev", "python3-torch", "libgoogle-glog-dev", "libgflags-dev")
DEPENDS = ("cudatoolkit 11.7.*", "libprotobuf >=3.21,<4.0a0")  # beside what METADATA says
METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: 1.13.1\nRequires-Dist: typing-extensions\n\n"


def fetch(cache: Path) -> Path:
    """What Debian's packages install."""
    return fetch_packages(POWER.debian, (*FRAMEWORK, *NEEDED), cache)


def needed(tree: Path) -> list[Path]:
    """The libraries that the framework uses."""
    return [tree / "usr/lib" / POWER.triple / name for name in (*NEEDED.values(), *WITH_THEM)]


def make_unused(folder: Path) -> list[Path]:
    """Makes empty libraries in place of those of which nothing is used."""
    made = [folder / name for name in UNUSED]
    for library in made:
        words = [POWER.compiler, "-shared", "-nostdlib", f"-Wl,-soname,{library.name}", "-x", "c", "/dev/null"]
        subprocess.run([*words, "-o", library], check=True)
    return made


def make_base(tree: Path, c10_cuda: Path, headers: Path, folder: Path) -> Path:
    """Makes the package, with a CUDA allocator, and c10's headers as they are with one: in Debian there is none."""
    files = folder / "base.tree"
    torch = files / PLACE / "torch"
    shutil.copytree(
        tree / "usr/lib/python3/dist-packages/torch",
        torch,
        ignore=shutil.ignore_patterns("*.so", "lib", "test", "include"),
    )
    (torch / "version.py").write_text(
        "__version__ = '1.13.1'\ndebug = False\ncuda = '11.7'\ngit_version = 'Unknown'\nhip = None\n"
    )
    for name in ("ATen", "c10", "caffe2", "torch", "glog", "gflags"):
        shutil.copytree(tree / "usr/include" / name, torch / "include" / name)
    shutil.copytree(headers / "c10/cuda", torch / "include/c10/cuda", dirs_exist_ok=True)
    (torch / "lib").mkdir()
    (torch / "lib/libc10_cuda.so").write_bytes(_renamed(c10_cuda.read_bytes()))
    for name in LIBRARIES:
        data = (tree / "usr/lib" / POWER.triple / f"lib{name}.so.1.13").read_bytes()
        (torch / "lib" / f"lib{name}.so").write_bytes(_renamed(data))
    dist_info = files / PLACE / "torch-1.13.1.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(METADATA)
    (dist_info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: cp311-cp311-linux_{POWER.name}\n")
    made = make(folder, "pytorch", "1.13.1", "cuda_py311_0", tree=files, depends=DEPENDS, subdir=f"linux-{POWER.name}")
    shutil.rmtree(files)
    return made


def _renamed(library: bytes) -> bytes:
    """The library with names that have no version, for itself and those of the framework that it needs."""
    for name in LIBRARIES:
        old, new = (f"\0lib{name}.so{version}\0".encode() for version in (".1.13", ""))
        library = library.replace(old, new.ljust(len(old), b"\0"))
    return library
