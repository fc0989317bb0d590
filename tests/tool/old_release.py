"""Old releases: the official wheel, patched by the tool, in an environment of the interpreter that it is for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.trial import trial
from lmsbuild.wheel.target import minor_of, python_of


def install(
    folder: Path,
    framework: str,
    tag: str,
    package: str | None = None,
    needs: tuple[str, ...] = (),
    newest: bool = False,
) -> Path:
    """Builds the wheel of the tag and installs it with what it and its tests need; returns the interpreter.

    As for `build`, which see.
    """
    wheel, interpreter = build(folder, framework, tag, package, newest)
    clean = clean_environment()
    subprocess.run([interpreter, "-m", "venv", folder / "venv"], check=True, env=clean)
    installed = folder / "venv" / "bin" / "python"
    pip = [installed, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    also = trial.also_needs(framework, tag.removeprefix("v"))
    subprocess.run([*pip, wheel, *also, *needs], check=True, env=clean)
    wheel.unlink()
    return installed


def build(
    folder: Path, framework: str, tag: str, package: str | None = None, newest: bool = False
) -> tuple[Path, Path]:
    """Builds the wheel of the tag; returns it and the interpreter that it is for.

    The oldest interpreter is taken that the tag has an official wheel for and LMS runs on, or the newest; skips where
    it is not there.
    """
    found = catalogue.find_tag(paths.patches_folder(), tag, framework)
    if package is not None:
        found = catalogue.of_package(found, package)
    pythons = [python for python in map(python_of, found.interpreters) if python is not None]
    python = (max if newest else min)(pythons, key=minor_of)
    interpreter = _find_interpreter(python)
    if interpreter is None:
        pytest.skip(f"needs python{python}, in PATH or among pyenv's versions: the wheel of {tag} is for it")
    words = [Path(sys.executable).with_name("lmsbuild"), framework, tag, "--python", python, "--output", folder]
    words += ["--package", package] if package is not None else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip()), interpreter


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _find_interpreter(python: str) -> Path | None:
    """An interpreter of that version, from PATH or from pyenv's versions."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python{python}")
    for found in [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{python}.*/bin/python{python}"))]:
        if (
            subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
        ):  # pyenv's shims may fail
            return found
    return None
