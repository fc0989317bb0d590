"""torchvision, in a folder of its own: beside the patched torch, but not in the environment that other tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from example_programs import TORCHVISION


@pytest.fixture(scope="session")
def torchvision(lms_python: Path, pytestconfig: pytest.Config) -> Path:
    """A folder for PYTHONPATH with torchvision and Pillow; 25 MB. Kept in pytest's cache folder."""
    cache = pytestconfig.cache
    assert cache is not None
    folder = Path(cache.mkdir("lms-torchvision")) / TORCHVISION
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = [lms_python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        # Without dependencies: NumPy and the patched torch are there.
        words += ["--no-deps", "--only-binary", ":all:", "--target", folder, TORCHVISION, "pillow"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run(words, check=True, env=environment)
        (folder / "complete").touch()
    return folder
