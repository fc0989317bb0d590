"""torchvision, in a folder of its own: beside the patched torch, but not in the environment that other tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

import kept
from example_programs import TORCHVISION


@pytest.fixture(scope="session")
def torchvision(lms_python: Path) -> Path:
    """A folder for PYTHONPATH with torchvision and Pillow; 25 MB."""
    # Without dependencies: NumPy and the patched torch are there.
    return kept.packages("torchvision", lms_python, [("--no-deps", TORCHVISION, "pillow")])
