"""Debian's Python for another kind of machine as a conda package, and the channel's other packages that PyTorch requires there."""

from __future__ import annotations

import compileall
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lmsbuild import paths
from lmsbuild.channel import channel
from machines import Machine, end_with_page, fetch_packages, make_root
from stand_ins import make

PYTHON = "3.11"  # of the version of Debian that the other libraries come from
PACKAGES = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "python3-typing-extensions")
LIBRARIES = {"libexpat1": "libexpat.so.1", "libffi8": "libffi.so.8", "zlib1g": "libz.so.1"}
PLACE = f"lib/python{PYTHON}"
ADDRESS_SPACE = "0x800000000"  # 32 GiB: the emulator keeps a table of all that a program reserves
EMPTY = {
    "_openmp_mutex": "4.5",
    "libgcc": "15.2.0",
    "libstdcxx": "15.2.0",
    "numpy": "1.26.4",  # PyTorch only says that it has none
    "python_abi": PYTHON,
}


def fetch(machine: Machine) -> Path:
    return fetch_packages(machine.debian, (*PACKAGES, *LIBRARIES), paths.cache_folder())


def make_channel(machine: Machine, tree: Path, folder: Path, others: Sequence[Path] = ()) -> Path:
    """A channel with Python, with what stands in for the rest, and with other packages."""
    subdir = f"linux-{machine.name}"
    files = folder / "python.tree"
    shutil.copytree(tree / "usr" / PLACE, files / PLACE)
    (files / "bin").mkdir()
    shutil.copyfile(tree / f"usr/bin/python{PYTHON}", files / f"bin/python{PYTHON}")
    for path in (files / f"bin/python{PYTHON}", *files.rglob("*.so")):
        path.chmod(0o755)
        end_with_page(path)
    made = [make(folder, "python", f"{PYTHON}.2", "0_cpython", tree=files, subdir=subdir)]
    for name, version in EMPTY.items():
        build = "0_cp" + PYTHON.replace(".", "") if name == "python_abi" else "0"
        made.append(make(folder, name, version, build, subdir=subdir))
    module = (tree / "usr/lib/python3/dist-packages/typing_extensions.py").read_bytes()
    contents = {f"{PLACE}/site-packages/typing_extensions.py": module}
    made += [make(folder, "typing_extensions", "4.4.0", files=contents, subdir=subdir), *others]
    target = folder / "channel"
    channel.publish(target, made)
    for package in made:
        package.unlink()
    shutil.rmtree(files)
    return target


def make_libraries(machine: Machine, tree: Path, root: Path) -> None:
    """A folder with the system's libraries."""
    folders = [tree / place / "lib" / machine.triple for place in (".", "usr")]
    found = [next(folder / name for folder in folders if (folder / name).exists()) for name in LIBRARIES.values()]
    make_root(machine, found, root)


def compile_modules(prefix: Path) -> None:
    """Compiles them here, where it takes no time, if this Python's code is the same."""
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        compileall.compile_dir(prefix / PLACE, quiet=2, workers=2)
        assert list((prefix / PLACE / "site-packages/torch/__pycache__").iterdir())


def run(machine: Machine, prefix: Path, root: Path, arguments: Sequence[str]) -> tuple[str, int]:
    """What the environment's Python prints, and the bytes of memory that it and the emulator took at most."""
    variables = {"PYTHONHOME": str(prefix), "PYTHONPATH": str(prefix / PLACE / "site-packages")}
    variables["QEMU_RESERVED_VA"] = ADDRESS_SPACE
    return machine.run(prefix / f"bin/python{PYTHON}", arguments, root, variables)
