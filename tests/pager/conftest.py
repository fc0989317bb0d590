"""Builds the pager's test programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from presets import FLAVOURS, Builds

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def build(builds: Builds) -> Callable[[str, str], Path]:
    """Returns the path of a program in a flavour, built if need be."""

    names = sorted(path.stem for path in HERE.glob("*.cc"))

    def program(flavour: str, name: str) -> Path:
        wanted = builds.start(flavour, name)
        # Compile ahead what later tests need, while this one runs.
        for later in names[names.index(name) :][:2]:
            for other in FLAVOURS:
                builds.start(other, later)
        return wanted.result()

    return program
