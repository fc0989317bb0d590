"""Old releases: the official wheel, patched by the tool, in an environment of the interpreter that it is for; both are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kept
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import download
from lmsbuild.trial import trial
from lmsbuild.wheel.target import minor_of, python_of, target_for
from lmsbuild.wheel.wheel import file_sha256


def install(
    framework: str, tag: str, package: str | None = None, needs: tuple[str, ...] = (), newest: bool = False
) -> Path:
    """The interpreter of an environment with the wheel of the tag, and what it and its tests need. As for `build`, which see."""
    wheel, interpreter = build(framework, tag, package, newest)
    also = trial.also_needs(framework, tag.removeprefix("v"))
    return kept.environment(f"{framework}-{tag}", [wheel], (*also, *needs), interpreter)


def build(framework: str, tag: str, package: str | None = None, newest: bool = False) -> tuple[Path, Path]:
    """The wheel of the tag, and the interpreter that it is for.

    The oldest interpreter is taken that the tag has an official wheel for and LMS runs on, or the newest; skips where
    it is not there.
    """
    found = catalogue.of_package(catalogue.find_tag(paths.patches_folder(), tag, framework), package)
    pythons = [python for python in map(python_of, found.interpreters) if python is not None]
    python = (max if newest else min)(pythons, key=minor_of)
    interpreter = _find_interpreter(python)
    if interpreter is None:
        pytest.skip(f"needs python{python}, in PATH or among pyenv's versions: the wheel of {tag} is for it")

    def make(output: Path) -> Path:
        words = [Path(sys.executable).with_name("lmsbuild"), framework, tag, "--python", python, "--output", output]
        words += ["--package", package] if package is not None else []
        variables = {**os.environ, **kept.cached_compiler()}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return Path(done.stdout.strip())

    base = download.fetch(found, target_for(python), paths.cache_folder())
    return kept.wheel(f"{found.package}-{tag}-python{python}", file_sha256(base), make), interpreter


def _find_interpreter(python: str) -> Path | None:
    """An interpreter of that version, from PATH or from pyenv's versions."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python{python}")
    for found in [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{python}.*/bin/python{python}"))]:
        done = subprocess.run([found, "-c", ""], capture_output=True, check=False)
        if done.returncode == 0:  # pyenv's shims may fail
            return found
    return None
