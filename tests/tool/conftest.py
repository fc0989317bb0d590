"""What the tests of the tool share: a stand-in wheel, and the sources of a patch for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import synthetic
from lmsbuild import catalogue, debian, paths, source
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


@pytest.fixture(scope="session")
def debian_tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a checkout of upstream's real tree at a tag that Debian has, once a session; nobody writes to it.

    Skips on a machine of another distribution, which cannot get it.
    """
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            tree = tmp_path_factory.mktemp("debian") / name
            patches, cache = paths.patches_folder(), paths.cache_folder()
            options = source.Options(catalogue.find_tag(patches, name), patches, cache, tree)
            try:
                archive = debian.fetch(source.read_origin(patches, "pytorch").debian[name], cache)
            except debian.NotDebian as error:
                pytest.skip(str(error))
            source.from_archive(tree, options, archive)
            made[name] = tree
        return made[name]

    return make
