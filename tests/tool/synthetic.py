"""A small stand-in for an official wheel and for the sources of a patch: everything the tool looks at, in kilobytes."""

from __future__ import annotations

import re
import stat
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.git_command import blob_hash
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import record_hash, record_text

TARGET = target_for(None)
ABI = TARGET.interpreter
PLATFORM = f"manylinux_2_28_{TARGET.machine}"
DIST_INFO = "torch-2.13.0+cpu.dist-info"
DATE = (2026, 7, 3, 22, 22, 46)

INIT = b'"""A framework."""\n\n_lazy_modules = {\n    # twice\n    # twice\n    "_export",\n}\n'
CUDA_INIT = b'__all__ = [\n    "init",\n]\n'
VERSION = b"__version__ = '2.13.0+cpu'\ndebug = False\n"

PAGER_SOURCE = b"""#include "ATen/lms/pager.h"
extern "C" __attribute__((visibility("default"))) const char* lms_where(void) { return __FILE__; }
"""
TORCH_SOURCE = b"""#include <ATen/ATen.h>
#include <string>
extern "C" __attribute__((visibility("default"))) int lms_torch_cpu_enabled(void) { return at::answer(); }
"""

TAGS = """package = "torch"

[[tag]]
name = "v2.13.0"
commit = "cf30153c4c131c8164ee7798e5022d810682e2cb"
version = "2.13.0"
abi = "cxx11"
standard = "c++17"
generation = "2.0"
supports = ["cpu"]

[tag.blobs]
{blobs}

[tag.wheels]
{wheels}
"""

EDITS = """[[edit]]
path = "torch/__init__.py"
anchor = '''
    "_export",
'''
after = '''
    "lms",
'''

[[edit]]
path = "torch/cuda/__init__.py"
anchor = '''
    "init",
'''
before = '''
    "get_enabled_lms",
'''
"""

STATEMENTS = r"""
[wheel.commit]
files = ["torch/version.py"]
pattern = '''(?m)^git_version(?:\s*:[^=]*)?\s*=\s*['"]([0-9a-f]{40})['"]'''

[wheel.cuda]
files = ["torch/version.py"]
pattern = '''(?m)^cuda(?:\s*:[^=]*)?\s*=\s*'([\d.]+)''''

[wheel.standard]
files = ["*/TorchConfig.cmake"]
pattern = '''\b(?:CXX_STANDARD |cxx_std_)(\d\d)\b'''
"""

SERIES = """pager_folder = "aten/src/ATen/lms"
python_folder = "torch/lms"

[[commit]]
subject = "Add the pager"
body = "Why."
paths = ["aten/src/ATen/lms/", "aten/src/ATen/LmsPager.cpp"]

[[commit]]
subject = "Add the glue"
body = ""
paths = ["aten/src/ATen/"]

[[commit]]
subject = "Add Python"
body = "Several\\nlines."
paths = ["torch/"]

[[commit]]
subject = "Add tests"
body = ""
paths = ["test/"]

[hook]
name = "call-lms"
subject = "Call it"
body = ""

[[generation]]
name = "2.0"
has = { "torch/lib/libtorch_cpu.so" = "", "torch/include/ATen/ATen.h" = "int answer" }

[[generation]]
name = "1.1"
has = { "torch/lib/libc10.so" = "" }
link = { torch_cpu = [] }

{STATEMENTS}
[graft]
label = "lms1"
python = 7
source_root = "aten/src"
include = ["torch/include"]
abi_library = "torch/lib/libc10.so"
cuda_library = "torch/lib/libc10_cuda.so"
version_file = "torch/version.py"
install = { "torch/" = "torch/" }

[[graft.library]]
path = "torch/lib/libtorch_lms.so"
sources = ["aten/src/ATen/LmsPager.cpp", "aten/src/ATen/LmsTorch.cpp"]
link = ["torch_cpu", "c10"]
""".replace("{STATEMENTS}", STATEMENTS)


@dataclass(frozen=True)
class Member:
    """A file in a wheel under construction."""

    data: bytes
    mode: int = 0o644
    listed: bytes | None = None  # what RECORD describes instead of `data`
    kind: int = stat.S_IFREG


def libraries(folder: Path) -> dict[str, bytes]:
    """The two libraries that the patch links against, compiled."""
    built = {}
    sources = {
        "c10": "#include <string>\nstd::string c10_name() { return std::string(64, 'c'); }\n",
        "torch_cpu": 'namespace at { __attribute__((visibility("default"))) int answer() { return 42; } }\n',
    }
    for name, text in sources.items():
        source = folder / f"{name}.cc"
        source.write_text(text)
        target = folder / f"lib{name}.so"
        subprocess.run(["g++", "-shared", "-fPIC", "-O1", "-o", target, source], check=True)
        built[f"torch/lib/lib{name}.so"] = target.read_bytes()
    return built


def members(built: Mapping[str, bytes]) -> dict[str, Member]:
    """The files of a sound wheel, RECORD excepted."""
    return {
        "torch/__init__.py": Member(INIT),
        "torch/cuda/__init__.py": Member(CUDA_INIT),
        "torch/version.py": Member(VERSION),
        "torch/bin/protoc": Member(b"#!/bin/sh\n", 0o755),
        "torch/include/ATen/ATen.h": Member(b"#pragma once\nnamespace at {\nint answer();\n}\n"),
        "torch/große Datei.txt": Member(b"x" * 100_000),
        **{name: Member(data, 0o755) for name, data in built.items()},
        f"{DIST_INFO}/METADATA": Member(b"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n\nVersion: none\n"),
        f"{DIST_INFO}/WHEEL": Member(
            f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {ABI}-{ABI}-{PLATFORM}\n\n".encode()
        ),
    }


def release(files: Mapping[str, Member], version: str) -> dict[str, Member]:
    """The files as a newer release has them, which says of itself what `lmsbuild tag add` asks."""
    dist_info = f"torch-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n".encode()
    return {
        **{re.sub(r"^torch-.*\.dist-info", dist_info, name): member for name, member in files.items()},
        f"{dist_info}/METADATA": Member(metadata),
        "torch/version.py": Member(
            f"__version__ = '{version}'\ndebug = False\ngit_version = '{'a1' * 20}'\nhip = None\n".encode()
        ),
        "torch/share/cmake/Torch/TorchConfig.cmake": Member(
            b"set_target_properties(torch PROPERTIES\n    CXX_STANDARD 17\n"
        ),
    }


def write_wheel(path: Path, files: Mapping[str, Member], extra: str = "") -> Path:
    """Writes a wheel of `files` with a RECORD; `extra` is added to RECORD as it is."""
    dist_info = next((name.split("/")[0] for name in files if ".dist-info/" in name), DIST_INFO)
    rows = []
    for name, member in files.items():
        data = member.data if member.listed is None else member.listed
        rows.append((name, record_hash(data), str(len(data))))
    record = record_text([*rows, (f"{dist_info}/RECORD", "", "")]) + extra.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in [*files.items(), (f"{dist_info}/RECORD", Member(record, 0o664))]:
            info = zipfile.ZipInfo(name, DATE)
            info.external_attr = (member.kind | member.mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, member.data)
    return path


def wheel_name(version: str = "2.13.0+cpu", abi: str = ABI, platform: str = PLATFORM, package: str = "torch") -> str:
    return f"{package}-{version}-{abi}-{abi}-{platform}.whl"


def write_sources(patches: Path, wheels: Mapping[str, str] | None = None) -> Path:
    """Writes the sources of a patch, laid out as in the repository."""
    files = {
        "src/pager/pager.h": b"#pragma once\n",
        "src/python/_library.py": b"def load():\n    pass\n",
        "src/pytorch/aten/src/ATen/LmsPager.cpp": PAGER_SOURCE,
        "src/pytorch/aten/src/ATen/LmsTorch.cpp": TORCH_SOURCE,
        "src/pytorch/torch/lms/__init__.py": b"def enable():\n    pass\n",
        "src/pytorch/test/test_lms.py": b"print('a test')\n",
        "catalogue/pytorch/edits.toml": EDITS.encode(),
        "catalogue/pytorch/series.toml": SERIES.encode(),
        "catalogue/pytorch/tags.toml": tags(
            {"torch/__init__.py": INIT, "torch/cuda/__init__.py": CUDA_INIT}, wheels
        ).encode(),
    }
    return write_files(patches, files)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def tags(edited: Mapping[str, bytes], wheels: Mapping[str, str] | None = None) -> str:
    blobs = "\n".join(f'"{name}" = "{blob_hash(data)}"' for name, data in edited.items())
    known = "\n".join(f'"{name}" = "{digest}"' for name, digest in (wheels or {}).items())
    return TAGS.format(blobs=blobs, wheels=known)


def edit_file(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))
