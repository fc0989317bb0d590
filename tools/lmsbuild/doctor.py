"""Checks that a machine can build: what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from lmsbuild import command, paths, report
from lmsbuild.catalogue import catalogue, cuda_packages
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.ending import refusals
from lmsbuild.errors import Failure, MachineNotReady, MissingProgram, UnknownCuda
from lmsbuild.fetch import pip_command
from lmsbuild.graft import compilation
from lmsbuild.wheel.target import target_for

_CACHE_BYTES = 1 << 30  # the largest base wheel
_OUTPUT_BYTES = 3 << 30  # unpacked libraries and headers, objects, and the wheel

# What installs a program, by the package manager that the machine has.
_PACKAGES = {
    "apt-get": {"c++": "g++", "git": "git", "venv": "python3-venv"},
    "dnf": {"c++": "gcc-c++", "git": "git", "venv": "python3"},
    "zypper": {"c++": "gcc-c++", "git": "git", "venv": "python3"},
    "pacman": {"c++": "gcc", "git": "git", "venv": "python"},
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    detail: str
    remedy: str = ""  # what mends it; empty: all is well


def run(cache: Path, output: Path) -> None:
    """Prints what was found. Raises MachineNotReady when something is missing."""
    missing = 0
    for finding in examine(cache, output):
        state = "MISSING" if finding.remedy else "ok"
        click.echo(report.verbatim(f"{state:8}{finding.name}: {finding.detail}"))
        if finding.remedy:
            missing += 1
            click.echo(f"{'':8}  -> {finding.remedy}")
    if missing:
        raise MachineNotReady(f"{missing} of the above must be mended before a wheel can be built")


def examine(cache: Path, output: Path) -> list[Finding]:
    """Looks at everything at the same time."""
    tags = catalogue.tags(paths.patches_folder())
    looks: dict[str, Callable[[], Finding]] = {
        "interpreter": partial(_interpreter, tags),
        "C++ compiler": partial(_compiler, tags),
        "git": _git,
        "pip": partial(_pip, tags),
        "CUDA headers": _cuda,
        "venv": _venv,
        "disk space for the cache": lambda: _space("disk space for the cache", cache, _CACHE_BYTES, "LMSBUILD_CACHE"),
        "disk space for the output": lambda: _space("disk space for the output", output, _OUTPUT_BYTES, "--output"),
    }
    calls = [partial(_found, name, look) for name, look in looks.items()]
    return command.call_all(calls, len(calls), on_finish=lambda done: None)


def _found(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except (MissingProgram, OSError) as error:
        failure = refusals.explained(error) if isinstance(error, OSError) else error
        detail, _, remedy = str(failure).partition("; ")
        return Finding(name, detail, remedy or "mend that first")


def _interpreter(tags: Sequence[Tag]) -> Finding:
    try:
        target = target_for(None)
    except Failure as error:
        return Finding("interpreter", str(error), "run on Linux")
    built_for = {abi for tag in tags for abi in tag.interpreters}
    if target.interpreter not in built_for:
        known = ", ".join(sorted(built_for))
        return Finding("interpreter", f"{target}: no official wheel is known for it", f"use one of {known}")
    return Finding("interpreter", f"{target}, {sys.executable}")


def _compiler(tags: Sequence[Tag]) -> Finding:
    try:
        words = compilation.compiler()
    except Failure as error:
        return Finding("C++ compiler", str(error).split(":")[0], _install("c++"))
    version = (command.run([*words, "--version"]).text.splitlines() or ["unknown version"])[0]
    standards = sorted({tag.standard for tag in tags})
    if not _builds(words, standards[-1]):  # what builds the newest builds the others
        failing = next((standard for standard in standards[:-1] if not _builds(words, standard)), standards[-1])
        return Finding("C++ compiler", f"{version} cannot build {failing}", _install("c++"))
    return Finding("C++ compiler", version)


def _builds(compiler: Sequence[str], standard: str) -> bool:
    """Whether the compiler makes a library of this C++ standard."""
    with tempfile.TemporaryDirectory(prefix="lmsbuild-doctor-") as folder:
        source, library = Path(folder, "probe.cc"), Path(folder, "probe.so")
        source.write_text("#include <mutex>\n#include <string>\nvoid probe() { std::mutex().lock(); }\n")
        flags = [f"-std={standard}", "-fPIC", "-shared", "-pthread"]
        environment = {**os.environ, "TMPDIR": folder}  # a compiler that is killed leaves its temporary files there
        words: list[str | Path] = [*compiler, *flags, "-o", library, source]
        return command.run(words, environment=environment).code == 0 and library.is_file()


def _git() -> Finding:
    if not shutil.which("git"):
        return Finding("git", "not found", _install("git"))
    return Finding("git", command.run(["git", "--version"]).text.strip())


def _pip(tags: Sequence[Tag]) -> Finding:
    if importlib.util.find_spec("pip") is None:
        return Finding("pip", f"{sys.executable} has no pip", f"{sys.executable} -m ensurepip")
    wanted: dict[str, list[str]] = {}  # versions by package; pip lists those that have a wheel for this interpreter
    for tag in tags:
        wanted.setdefault(tag.package, [])
        if target_for(None).interpreter in tag.interpreters:
            wanted[tag.package].append(tag.version)
    finding = _unlisted("pip", wanted, "check `pip config list`, or use --base")
    return finding or Finding("pip", "reaches the registry")


def _cuda() -> Finding:
    """Wheels for CUDA take its headers from packages, so that no toolkit is needed."""
    if importlib.util.find_spec("pip") is None:
        return Finding("CUDA headers", "cannot be fetched without pip", f"{sys.executable} -m ensurepip")
    patches = paths.patches_folder()
    wanted: dict[str, list[str]] = {}
    served = []
    for version in cuda_packages.versions(patches):
        with suppress(UnknownCuda):  # for another kind of machine only
            for release in cuda_packages.releases(patches, version, target_for(None).machine):
                wanted.setdefault(release.package, []).append(release.version)
            served.append(version)
    remedy = "check `pip config list`; only wheels for CUDA need it"
    detail = f"in the registry for CUDA {', '.join(served)}; no toolkit and no GPU are needed"
    return _unlisted("CUDA headers", wanted, remedy) or Finding("CUDA headers", detail)


def _unlisted(name: str, wanted: Mapping[str, list[str]], remedy: str) -> Finding | None:
    """What is amiss when pip does not list these versions, by package."""
    found, reason = pip_command.versions(list(wanted))
    for number, (package, versions) in enumerate(wanted.items()):
        if number == len(found):
            return Finding(name, f"pip cannot find {package}: {reason}", f"check the network, and {remedy}")
        if missing := [version for version in versions if version not in found[number]]:
            return Finding(name, f"pip finds no {package} {', '.join(missing)}", remedy)
    return None


def _venv() -> Finding:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return Finding(
            "venv", f"{sys.executable} cannot make environments, which `lmsbuild try` needs", _install("venv")
        )
    return Finding("venv", "available")


def _space(name: str, folder: Path, needed: int, setting: str) -> Finding:
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if _is_there(parent))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        detail = "cannot be written to" if existing.is_dir() else "is no folder"
        return Finding(name, f"{existing} {detail}", f"choose another folder with {setting}")
    free = shutil.disk_usage(existing).free
    detail = f"{free / 2**30:.1f} GiB free at {existing}, {needed / 2**30:.0f} GiB needed"
    return Finding(name, detail, "" if free >= needed else f"free some, or choose another folder with {setting}")


def _is_there(path: Path) -> bool:
    """Raises OSError for what cannot be there, such as a path that is too long."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _install(what: str, which: Callable[[str], str | None] = shutil.which) -> str:
    for manager, packages in _PACKAGES.items():
        if which(manager):
            word = "-S" if manager == "pacman" else "install"
            return f"{manager} {word} {packages[what]}"
    return f"install {what} with your distribution's package manager"
