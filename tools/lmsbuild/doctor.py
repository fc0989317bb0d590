"""Checks that a machine can build: what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from lmsbuild import catalogue, command, compile, paths
from lmsbuild.errors import Failure, MachineNotReady
from lmsbuild.series import read_series
from lmsbuild.target import target_for

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
        click.echo(f"{'MISSING' if finding.remedy else 'ok':8}{finding.name}: {finding.detail}")
        if finding.remedy:
            missing += 1
            click.echo(f"{'':8}  -> {finding.remedy}")
    if missing:
        raise MachineNotReady(f"{missing} of the above must be mended before a wheel can be built")


def examine(cache: Path, output: Path) -> Iterator[Finding]:
    """Looks at one thing after the other."""
    yield from (_interpreter(), _compiler(), _git(), _pip(), _venv())
    yield _space("disk space for the cache", cache, _CACHE_BYTES, "LMSBUILD_CACHE")
    yield _space("disk space for the output", output, _OUTPUT_BYTES, "--output")


def _interpreter() -> Finding:
    try:
        target = target_for(None)
    except Failure as error:
        return Finding("interpreter", str(error), "run on Linux")
    built_for = {abi for tag in catalogue.tags(paths.patches_folder()) for abi in tag.interpreters}
    if target.interpreter not in built_for:
        known = ", ".join(sorted(built_for))
        return Finding("interpreter", f"{target}: no official wheel is known for it", f"use one of {known}")
    return Finding("interpreter", f"{target}, {sys.executable}")


def _compiler() -> Finding:
    try:
        words = compile.compiler()
    except Failure as error:
        return Finding("C++ compiler", str(error).split(":")[0], _install("c++"))
    version = (command.run([*words, "--version"]).text.splitlines() or ["unknown version"])[0]
    patches = paths.patches_folder()
    for framework in catalogue.frameworks(patches):
        standard = read_series(patches, framework).graft.standard
        with tempfile.TemporaryDirectory(prefix="lmsbuild-doctor-") as folder:
            source = Path(folder) / "probe.cc"
            source.write_text("#include <thread>\n#include <string>\nvoid probe() { std::thread([] {}).join(); }\n")
            flags = [f"-std={standard}", "-fPIC", "-shared", "-pthread", "-o", f"{folder}/probe.so"]
            if command.run([*words, *flags, str(source)]).code:
                return Finding("C++ compiler", f"{version} cannot build {standard} for {framework}", _install("c++"))
    return Finding("C++ compiler", version)


def _git() -> Finding:
    if not shutil.which("git"):
        return Finding("git", "not found", _install("git"))
    return Finding("git", command.run(["git", "--version"]).text.strip())


def _pip() -> Finding:
    if importlib.util.find_spec("pip") is None:
        return Finding("pip", f"{sys.executable} has no pip", f"{sys.executable} -m ensurepip")
    for tag in catalogue.tags(paths.patches_folder()):
        listed = command.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "index", "versions", tag.package]
        )
        if listed.code:
            reason = (listed.error_text.strip().splitlines() or ["no reason given"])[-1]
            return Finding("pip", f"cannot reach a registry: {reason}", "check the network and `pip config list`")
        if tag.version not in listed.text:
            return Finding(
                "pip", f"finds no {tag.package} {tag.version}", "check `pip config list`, or use --base-wheel"
            )
    return Finding("pip", "reaches the registry")


def _venv() -> Finding:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return Finding(
            "venv", f"{sys.executable} cannot make environments, which `lmsbuild try` needs", _install("venv")
        )
    return Finding("venv", "available")


def _space(name: str, folder: Path, needed: int, setting: str) -> Finding:
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    detail = f"{free / 2**30:.1f} GiB free at {existing}, {needed / 2**30:.0f} GiB needed"
    return Finding(name, detail, "" if free >= needed else f"free some, or choose another folder with {setting}")


def _install(what: str, which: Callable[[str], str | None] = shutil.which) -> str:
    for manager, packages in _PACKAGES.items():
        if which(manager):
            word = "-S" if manager == "pacman" else "install"
            return f"{manager} {word} {packages[what]}"
    return f"install {what} with your distribution's package manager"
