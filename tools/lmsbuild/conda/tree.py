"""A wheel's files as an environment has them: what goes into a conda package."""

from __future__ import annotations

import configparser
import os
import posixpath
import shutil
import stat
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from lmsbuild import report
from lmsbuild.conda import openmp, runpath
from lmsbuild.conda.requirements import Provider, for_environment
from lmsbuild.conda.variants import Layout
from lmsbuild.wheel.wheel import WheelFile, record_hash, record_text

_LICENSES = ("LICENSE", "NOTICE", "THIRD_PARTY_NOTICES")  # what the names of such files begin with
_LINKED = ("libc10", "libtorch", "libshm", "libcaffe2")  # what the names of such libraries begin with
_OWN_PAGE = 4096  # bytes: of most machines
_ANY_PYTHON = b"#!python"  # the first line of a wheel's scripts, for installers to replace
# Python that is a shell script, too: it runs the interpreter beside it, wherever the environment is, so that the file is the same
# in each.
_OWN_PYTHON = b"""#!/bin/sh
'''exec' "$(dirname "$(readlink -f "$0")")/python" "$0" "$@"
' '''
"""


def unpack(wheel: WheelFile, target: Layout, providers: Mapping[str, Provider], tree: Path) -> None:
    """Unpacks the wheel as pip installs it, and makes it use what the environment has: its libraries, its OpenMP."""
    data_folder = wheel.dist_info.removesuffix(".dist-info") + ".data"
    placed: dict[str, Path] = {}

    def place(name: str) -> Path:
        placed[name] = tree / target.place(name, data_folder)
        return placed[name]

    with report.progress("unpack", wheel.total_size(), is_bytes=True) as show:
        wheel.verify(place, show)
    record = {target.place(name, data_folder): row for name, row in wheel.record().items()}
    edited = set()
    for name, path in placed.items():
        mode = stat.S_IMODE(wheel.members[name].external_attr >> 16)
        path.chmod(0o755 if mode & 0o111 or path.parent == tree / "bin" else 0o644)
        if openmp.is_runtime(name):
            path.unlink()
            del record[target.place(name, data_folder)]
        elif _use_environment(path, tree, target.packages):
            edited.add(path)
        if path.exists() and _end_with_page(path, target.platform.page):
            edited.add(path)
    metadata_file = tree / target.packages / wheel.dist_info / "METADATA"
    metadata_file.write_bytes(for_environment(metadata_file.read_bytes(), providers))
    installer = metadata_file.with_name("INSTALLER")
    installer.write_text("conda\n")
    edited |= {metadata_file, installer, *_make_programs(wheel, tree)}
    for path in edited:
        data = path.read_bytes()
        record[path.relative_to(tree).as_posix()] = (record_hash(data), str(len(data)))
    rows = [(posixpath.relpath(name, target.packages), *row) for name, row in sorted(record.items())]
    metadata_file.with_name("RECORD").write_bytes(record_text(rows))


def link_libraries(tree: Path, packages: str) -> None:
    """Puts links to the framework's libraries where compilers and loaders of an environment look for them."""
    for library in sorted((tree / packages).glob("*/lib/lib*.so")):
        if library.name.startswith(_LINKED):
            (tree / "lib" / library.name).symlink_to(library.relative_to(tree / "lib"))


def _make_programs(wheel: WheelFile, tree: Path) -> list[Path]:
    """Makes the commands that the wheel brings, and returns all files of the environment's folder for commands."""
    folder = tree / "bin"
    for script, module in _programs(wheel).items():
        folder.mkdir(exist_ok=True)
        (folder / script).write_bytes(_program(module))
        (folder / script).chmod(0o755)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in files:
        first, _, rest = path.read_bytes().partition(b"\n")
        if first.startswith(_ANY_PYTHON):
            path.write_bytes(_OWN_PYTHON + rest)
    return files


def _use_environment(path: Path, tree: Path, packages: str) -> bool:
    """Makes a library that looks into other wheels, or into folders of its build machine, look into the environment's lib.

    Also one that needs the wheel's copy of OpenMP's runtime. Returns whether it had to be changed.
    """
    with path.open("rb") as stream:
        known = runpath.read(stream, path.name)
    if known is None:
        return False
    folder = path.parent.relative_to(tree)
    own = [entry for entry in known.runpath if _stays_in_wheel(entry, folder, tree, packages)]
    shares = openmp.use_shared(path, known)
    if len(own) == len(known.runpath) and not shares:
        return False
    library = posixpath.relpath("lib", folder.as_posix())
    runpath.write(path, (*own, f"$ORIGIN/{library}"))
    return True


def _end_with_page(path: Path, page: int) -> bool:
    """Makes an ELF file end where a page does, if pages are larger than here: an emulator maps nothing of one that is not whole.

    Returns whether it had to be changed.
    """
    missing = -path.stat().st_size % page
    if not missing or page <= _OWN_PAGE:
        return False
    with path.open("r+b") as file:
        if file.read(len(runpath.MAGIC)) != runpath.MAGIC:
            return False
        file.seek(0, os.SEEK_END)
        file.write(bytes(missing))
    return True


def _stays_in_wheel(entry: str, folder: Path, tree: Path, packages: str) -> bool:
    """Whether a library path of a file in `folder` leads to one of the packages that the wheel has."""
    if entry != "$ORIGIN" and not entry.startswith("$ORIGIN/"):
        return False
    found = posixpath.normpath(entry.replace("$ORIGIN", folder.as_posix(), 1))
    top = posixpath.relpath(found, packages).split("/")[0]
    return top not in (".", "..") and (tree / packages / top).is_dir()


def _programs(wheel: WheelFile) -> dict[str, str]:
    """The commands that the wheel brings, as MODULE:FUNCTION by name; not those of other packages, which bring them, too."""
    name = f"{wheel.dist_info}/entry_points.txt"
    if name not in wheel.members:
        return {}
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(wheel.read(name).decode())
    found = dict(parser["console_scripts"]) if parser.has_section("console_scripts") else {}
    own = {member.split("/")[0] for member in wheel.members}
    return {script: entry for script, entry in found.items() if entry.partition(":")[0].strip().split(".")[0] in own}


def _program(entry: str) -> bytes:
    module, _, function = entry.partition(":")
    name = function.strip().split(".")[0]
    text = f"import sys\n\nfrom {module.strip()} import {name}\n\nsys.exit({function.strip()}())\n"
    return _ANY_PYTHON + b"\n" + text.encode()


def copy_licenses(packages: Path, dist_info: str, folder: Path) -> None:
    """Copies the wheel's licence files: those of its description, and those at the top of its packages."""
    folder.mkdir()
    for path in sorted(packages.glob(f"{dist_info}/**/*")):
        relative = path.relative_to(packages / dist_info)
        if path.is_file() and (relative.parts[0] == "licenses" or relative.name.startswith(_LICENSES)):
            _copy(path, folder / "wheel" / relative)
    for path in sorted(packages.glob("*/*")):
        if path.is_file() and path.name.startswith(_LICENSES) and path.parent.name != dist_info:
            _copy(path, folder / "wheel" / path.parent.name / path.name)
    for file in metadata.files("lmsbuild") or []:
        if file.name == "LICENSE":
            (folder / "LICENSE-large-model-support").write_text(file.read_text())


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
