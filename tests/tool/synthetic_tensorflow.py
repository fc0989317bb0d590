"""A stand-in for TensorFlow beside that for PyTorch: wheels of two packages, and the sources of a patch for them.

What differs is what series.toml says: no file states the version or the C++ standard, headers are in the way of both kinds of
wheels, one file is elsewhere than in the source tree, and modules of the wheel are generated.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from synthetic import ABI, PLATFORM, Member, write_files

VERSION = "2.14.1"
GIT_VERSION = b"v2.14.0-10-g99d80a9e254"
LIBRARY = "tensorflow/libtensorflow_framework.so.2"
BUILD_INFO = "tensorflow/python/platform/build_info.py"
PROTO = "tensorflow/include/tensorflow/core/protobuf/config.proto"
EXPERIMENTAL = "tensorflow/_api/v2/config/experimental/__init__.py"
MODULE = b"""import sys as _sys

from tensorflow.python.framework.config import get_device_policy # line: 316
from tensorflow.python.framework.config import get_memory_info
from tensorflow.python.util import module_wrapper as _module_wrapper
_wrapped = True
"""

TAGS = """package = "tensorflow"
variants = ["tensorflow-cpu"]

"""

EDITS = """[[edit]]
path = "tensorflow/core/protobuf/config.proto"
anchor = '''
    bool use_unified_memory = 2;
'''
after = '''
    bool lms_enabled = 10001;
'''
"""

SERIES = r"""pager_folder = "tensorflow/core/lms/pager"
python_folder = "tensorflow/python/lms"

[[commit]]
subject = "Add the pager"
body = ""
paths = ["tensorflow/core/lms/pager/"]

[[commit]]
subject = "Add the glue"
body = ""
paths = ["tensorflow/"]

[hook]
name = "call-lms"
subject = "Call it"
body = ""

[[generation]]
name = "2.12"
has = { "tensorflow/libtensorflow_framework.so.2" = "" }
define = ["ANSWER=42"]
standard = "c++17"

[[generation]]
name = "2.1"
has = { "tensorflow_core/libtensorflow_framework.so.2" = "" }
rename = { "tensorflow/" = "tensorflow_core/" }
define = ["ANSWER=42"]
standard = "c++14"

[[only]]
path = "tensorflow/core/lms/lms_gpu.cc"
generations = ["2.12"]

[wheel.commit]
files = ["tensorflow/none.so", "tensorflow/libtensorflow_framework.so.2"]
pattern = '''v\d+\.\d+\.\d+[\w.-]*-\d+-g([0-9a-f]{7,40})\b'''

[wheel.cuda]
files = ["tensorflow/python/platform/build_info.py"]
pattern = '''\bcuda_version'\s*,\s*'([\d.]+)\''''

[graft]
label = "lms1"
python = 7
source_root = "."
include = ["tensorflow/include"]
abi_library = "tensorflow/libtensorflow_framework.so.2"
left_out = ["BUILD"]

[graft.install]
"tensorflow/python/" = "tensorflow/python/"
"tensorflow/core/protobuf/config.proto" = "tensorflow/include/tensorflow/core/protobuf/config.proto"

[[graft.library]]
path = "tensorflow/libtensorflow_lms.so"
sources = ["tensorflow/core/lms/lms_cpu.cc"]
cuda_sources = ["tensorflow/core/lms/lms_gpu.cc"]
cuda_define = ["GOOGLE_CUDA=1"]
link = [":libtensorflow_framework.so.2"]

[[graft.export]]
modules = ["tensorflow/_api/v2/config/experimental/__init__.py", "tensorflow/__init__.py"]
source = "tensorflow.python.lms.config"
names = ["set_lms_enabled", "get_lms_enabled"]
"""

CPU_SOURCE = b"""#include "tensorflow/core/framework.h"
#include "tensorflow/core/lms/pager/pager.h"
#include <string>
#define VISIBLE extern "C" __attribute__((visibility("default")))
#ifdef GOOGLE_CUDA
#error "not for this source"
#endif
static_assert(ANSWER == 42, "as the generation says");
VISIBLE int lms_answer(void) { return tensorflow::answer(); }
"""
GPU_SOURCE = b"""#ifndef GOOGLE_CUDA
#error "only with CUDA"
#endif
extern "C" __attribute__((visibility("default"))) int lms_gpu(void) { return 1; }
"""


def library(folder: Path) -> bytes:
    """The framework's library, compiled: it states the commit."""
    source = folder / "framework.cc"
    source.write_text(
        "#include <string>\n"
        f'extern "C" const char* tf_git_version() {{ return "{GIT_VERSION.decode()}"; }}\n'
        "namespace tensorflow { int answer() { return 42; } std::string name() { return std::string(64, 'n'); } }\n"
    )
    target = folder / "libtensorflow_framework.so.2"
    subprocess.run(["g++", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", "-o", target, source], check=True)
    return target.read_bytes()


def members(framework: bytes, package: str, cuda: str = "") -> dict[str, Member]:
    """The files of a sound wheel of one of the packages."""
    info = f"{package.replace('-', '_')}-{VERSION}.dist-info"
    facts = [("is_cuda_build", bool(cuda)), *([("cuda_version", cuda)] if cuda else [])]
    return {
        "tensorflow/__init__.py": Member(MODULE.replace(b"_wrapped = True\n", b"_wrapped = True")),
        EXPERIMENTAL: Member(MODULE),
        BUILD_INFO: Member(f"build_info = dict({facts})\n".encode()),
        PROTO: Member(b"message Experimental {\n    bool use_unified_memory = 2;\n}\n"),
        "tensorflow/include/tensorflow/core/framework.h": Member(b"namespace tensorflow {\nint answer();\n}\n"),
        LIBRARY: Member(framework, 0o755),
        f"{info}/METADATA": Member(f"Metadata-Version: 2.1\nName: {package}\nVersion: {VERSION}\n".encode()),
        f"{info}/WHEEL": Member(
            f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {ABI}-{ABI}-{PLATFORM}\n\n".encode()
        ),
    }


def classic(files: Mapping[str, Member], package: str) -> dict[str, Member]:
    """The same as releases before 2.2 have them: in another package, and headers beside it in the folder for data."""
    data = f"{package.replace('-', '_')}-{VERSION}.data/purelib/"
    renamed = {re.sub("^tensorflow/", "tensorflow_core/", name): member for name, member in files.items()}
    return {data + name if "framework.h" in name else name: member for name, member in renamed.items()}


def requires_another(package: str) -> dict[str, Member]:
    """The files of a wheel that holds no build."""
    return {name: member for name, member in members(b"", package).items() if ".dist-info/" in name}


def write_sources(patches: Path) -> None:
    """Writes the sources of the patch beside those for PyTorch."""
    files = {
        "src/tensorflow/tensorflow/core/lms/lms_cpu.cc": CPU_SOURCE,
        "src/tensorflow/tensorflow/core/lms/lms_gpu.cc": GPU_SOURCE,
        "src/tensorflow/tensorflow/core/lms/BUILD": b"cc_library()\n",
        "src/tensorflow/tensorflow/python/lms/__init__.py": b"def enable():\n    pass\n",
        "src/tensorflow/tensorflow/python/lms/BUILD": b"py_library()\n",
        "catalogue/tensorflow/edits.toml": EDITS.encode(),
        "catalogue/tensorflow/series.toml": SERIES.encode(),
        "catalogue/tensorflow/tags.toml": TAGS.encode(),
    }
    write_files(patches, files)
