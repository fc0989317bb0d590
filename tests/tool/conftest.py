"""What the tests of the tool share: a stand-in wheel, and the sources of a patch for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kept
import synthetic
import synthetic_tensorflow
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.errors import SourceUnreachable
from lmsbuild.fetch import apt, patience
from lmsbuild.source import debian, source
from lmsbuild.trial import trial
from shop import Shop
from workshop import Workshop


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, synthetic.Member]:
    """The members of a sound wheel."""
    return synthetic.members(synthetic.libraries(tmp_path_factory.mktemp("libraries")))


@pytest.fixture(scope="session")
def first_workshop(tmp_path_factory: pytest.TempPathFactory, stand_in: dict[str, synthetic.Member]) -> Workshop:
    """The one that all others are copies of: git makes its patches."""
    folder = tmp_path_factory.mktemp("workshop")
    base = synthetic.write_wheel(folder / synthetic.wheel_name(), stand_in)
    made = Workshop(folder, base, synthetic.write_sources(folder / "patches"))
    made.generate()
    return made


@pytest.fixture
def workshop(tmp_path: Path, first_workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    for name, value in kept.cached_compiler().items():  # the stand-in's sources are the same in every test
        monkeypatch.setenv(name, value)
    shutil.copytree(first_workshop.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Workshop(tmp_path, tmp_path / first_workshop.base.name, tmp_path / first_workshop.patches.name)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every wait between two attempts to reach a server. Nothing waits."""
    seen: list[float] = []
    monkeypatch.setattr(patience, "pause", seen.append)
    return seen


@pytest.fixture(scope="session")
def framework_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return synthetic_tensorflow.library(tmp_path_factory.mktemp("framework"))


@pytest.fixture
def tensorflow_shop(workshop: Workshop, framework_library: bytes, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A workshop with a second framework, whose wheels pip finds in a folder, and nowhere else."""
    shop = Shop(workshop, workshop.folder / "shop", framework_library)
    shop.fill()
    shop.is_the_only_one(monkeypatch)
    return shop


@pytest.fixture(scope="session")
def first_known_shop(
    first_workshop: Workshop, framework_library: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of the one that all others are copies of: three pips and a build add its tag."""
    folder = Path(shutil.copytree(first_workshop.folder, tmp_path_factory.mktemp("known") / "shop", symlinks=True))
    made = Workshop(folder, folder / first_workshop.base.name, folder / first_workshop.patches.name)
    shop = Shop(made, folder / "shop", framework_library)
    shop.fill()
    with pytest.MonkeyPatch.context() as patch:
        shop.is_the_only_one(patch)
        patch.setattr(trial, "run", lambda *words: "trained")
        shop.add(package="tensorflow-cpu")
    shutil.rmtree(made.cache)
    return folder


@pytest.fixture
def known_shop(
    workshop: Workshop, first_known_shop: Path, framework_library: bytes, monkeypatch: pytest.MonkeyPatch
) -> Shop:
    """The same, with its tag in the catalogue."""
    shutil.rmtree(workshop.patches)
    shutil.copytree(first_known_shop, workshop.folder, symlinks=True, dirs_exist_ok=True)
    shop = Shop(workshop, workshop.folder / "shop", framework_library)
    shop.is_the_only_one(monkeypatch)
    return shop


@pytest.fixture(scope="session")
def debian_tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a checkout of upstream's real tree at a tag that Debian has, once a session; no test writes to it.

    `name` is the tag's full one. Skips on a machine of another distribution, which cannot get it, and where Debian's
    development suite has moved on.
    """
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            tree = tmp_path_factory.mktemp("debian") / name.replace(":", "-")
            patches, cache = paths.patches_folder(), paths.cache_folder()
            tag = catalogue.find_tag(patches, name)
            options = source.Options(tag, patches, cache, tree)
            package = source.read_origin(patches, tag.framework).debian[tag.name]
            try:
                archive = debian.fetch(package, cache)
            except apt.NotDebian as error:
                pytest.skip(str(error))
            except SourceUnreachable as error:
                if package.suite != "sid":
                    raise
                pytest.skip(f"needs {cache / f'debian-{package.sha256[:8]}' / package.file}: {error}")
            source.from_archive(tree, options, archive)
            made[name] = tree
        return made[name]

    return make
