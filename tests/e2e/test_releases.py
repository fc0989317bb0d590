"""Old releases: the official wheel, patched by the tool, run by the interpreter that it is for, with checks_every_release.py.

LMS_TEST_TAGS names other tags than the one that is always run, such as "v1.1.0 v1.13.1"; each is built for the oldest
interpreter that it has a wheel for. Disk: the official wheel, and three times as much until the tests end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks import Outcomes, parameters
from lmsbuild import catalogue, paths
from lmsbuild.target import minor_of, python_of

PROGRAMS = Path(__file__).parent / "programs"
MODULE = "checks_every_release"
TAGS = ["v1.4.0", *os.environ.get("LMS_TEST_TAGS", "").split()]


def release_checks() -> list[Any]:
    return [
        pytest.param(tag, *each.values, id=f"{tag}-{each.values[1]}")
        for tag in TAGS
        for each in parameters(PROGRAMS)
        if each.values[0] == MODULE
    ]


def oldest_python(tag: str) -> str:
    """The version of the oldest interpreter that the tag has an official wheel for, of those that LMS runs on."""
    found = catalogue.find_tag(paths.patches_folder(), tag, "pytorch")
    pythons = [python for python in map(python_of, found.interpreters) if python is not None]
    return min(pythons, key=minor_of)


def find_interpreter(python: str) -> Path | None:
    """An interpreter of that version, from PATH or from pyenv's versions."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python{python}")
    for found in [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{python}.*/bin/python{python}"))]:
        if (
            subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
        ):  # pyenv's shims may fail
            return found
    return None


class Release:
    """A tag's wheel in an environment of its own, and the outcomes of the checks there."""

    def __init__(self, tag: str, items: list[pytest.Item], folder: Path) -> None:
        python = oldest_python(tag)
        interpreter = find_interpreter(python)
        if interpreter is None:
            pytest.skip(f"needs python{python}, in PATH or among pyenv's versions: the wheel of {tag} is for it")
        tool = Path(sys.executable).with_name("lmsbuild")
        build = [tool, "pytorch", tag, "--python", python, "--output", folder]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        wheel = Path(done.stdout.strip())
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([interpreter, "-m", "venv", folder / "venv"], check=True, env=clean)
        installed = folder / "venv/bin/python"
        pip = [installed, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-cache-dir", "numpy", wheel], check=True, env=clean)
        wheel.unlink()
        environment = {**clean, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        self.outcomes = Outcomes(items, "test_release", installed, environment, folder)


@pytest.fixture(scope="session")
def releases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Outcomes]]:
    """The outcomes of a tag's checks; its environment is made when the first is asked for, and removed at the end."""
    known: dict[str, Release] = {}
    folders: list[Path] = []

    def outcomes(tag: str) -> Outcomes:
        if tag not in known:
            folders.append(tmp_path_factory.mktemp(tag))
            items = [item for item in request.session.items if f"[{tag}-" in item.name]
            known[tag] = Release(tag, items, folders[-1])
        return known[tag].outcomes

    yield outcomes
    for folder in folders:
        shutil.rmtree(folder)


@pytest.mark.parametrize(("tag", "module", "name"), release_checks())
def test_release(tag: str, module: str, name: str, releases: Callable[[str], Outcomes]) -> None:
    outcome = releases(tag).of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
