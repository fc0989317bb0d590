"""Old releases: the official wheel, patched by the tool, run by the interpreter that it is for, with checks_every_release.py.

LMS_TEST_TAGS names other tags than the one that is always run, such as "v1.1.0 v1.13.1"; each is built for the oldest
interpreter that it has a wheel for. Disk: the official wheel, and three times as much until the tests end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import old_release
from checks import Outcomes, parameters

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


class Release:
    """A tag's wheel in an environment of its own, and the outcomes of the checks there."""

    def __init__(self, tag: str, items: list[pytest.Item], folder: Path) -> None:
        python = old_release.install(folder, "pytorch", tag, needs=("numpy",))
        clean = old_release.clean_environment()
        environment = {**clean, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        self.outcomes = Outcomes(items, "test_release", python, environment, folder)


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
