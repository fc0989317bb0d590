"""What the tests of the tool share: a stand-in wheel, and the sources of a patch for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import synthetic
from workshop import Workshop


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, synthetic.Member]:
    """The members of a sound wheel."""
    return synthetic.members(synthetic.libraries(tmp_path_factory.mktemp("libraries")))


@pytest.fixture
def workshop(tmp_path: Path, stand_in: dict[str, synthetic.Member]) -> Workshop:
    base = synthetic.write_wheel(tmp_path / synthetic.wheel_name(), stand_in)
    made = Workshop(tmp_path, base, synthetic.write_sources(tmp_path / "patches"))
    made.generate()
    return made
