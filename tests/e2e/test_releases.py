"""Old releases: the official wheel, patched by the tool, run by the interpreter that it is for, with checks_every_release.py.

LMS_TEST_TAGS names other tags than the one that is always run, such as "v1.1.0 v1.13.1"; each is built for the oldest
interpreter that it has a wheel for. Disk: the official wheel, and three times as much in what the tests keep. In CI it trains two
of the four models; the others run before a release.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kept
import old_release
from checks import Outcomes, parameters

PROGRAMS = Path(__file__).parent / "programs"
MODULE = "checks_every_release"
pytestmark = pytest.mark.build
TAGS = ["v1.4.0", *os.environ.get("LMS_TEST_TAGS", "").split()]


def release_checks() -> list[Any]:
    return [
        pytest.param(tag, *each.values, id=f"{tag}-{each.values[1]}", marks=each.marks)
        for tag in TAGS
        for each in parameters(PROGRAMS, release=("check_transformer", "check_unet3d"))
        if each.values[0] == MODULE
    ]


@pytest.fixture(scope="session")
def releases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcomes]:
    """The outcomes of a tag's checks; its environment is made when the first is asked for, and kept."""

    @cache
    def outcomes(tag: str) -> Outcomes:
        folder = tmp_path_factory.mktemp(tag)
        python = old_release.install("pytorch", tag, needs=("numpy",))
        variables = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        items = [item for item in request.session.items if f"[{tag}-" in item.name]
        return Outcomes(items, "test_release", python, {**kept.clean_environment(), **variables}, folder)

    return outcomes


@pytest.mark.parametrize(("tag", "module", "name"), release_checks())
def test_release(tag: str, module: str, name: str, releases: Callable[[str], Outcomes]) -> None:
    outcome = releases(tag).of(module, name)
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
