"""The real patched wheels of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import grafted
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import download
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import WheelFile

PATCHES = paths.patches_folder()
LIBRARY = "tensorflow/libtensorflow_lms.so"


@dataclass(frozen=True)
class Pair:
    """A patched wheel, and the official one that it was made from."""

    tag: catalogue.Tag
    built: Path
    base: Path


@pytest.fixture(scope="module", params=["v2.14.1", "v2.21.0"])
def pair(request: pytest.FixtureRequest, tensorflow_wheel: Callable[[str], Path]) -> Pair:
    tag = catalogue.of_package(catalogue.find_tag(PATCHES, request.param, "tensorflow"), "tensorflow-cpu")
    built = tensorflow_wheel(request.param)
    return Pair(tag, built, download.fetch(tag, target_for(None), paths.cache_folder()))


def test_it_differs_from_the_official_wheel_only_where_it_should(pair: Pair) -> None:
    assert parse_name(pair.base).package == "tensorflow-cpu"
    grafted.check_differences(pair.built, pair.base, pair.tag, PATCHES, {LIBRARY})


def test_every_file_is_what_its_record_says(pair: Pair) -> None:
    with WheelFile(pair.built) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_the_platform_tag_is_true(pair: Pair, tmp_path: Path) -> None:
    grafted.check_platform(pair.built, {LIBRARY}, tmp_path)


def test_the_library_is_hardened(pair: Pair, tmp_path: Path) -> None:
    grafted.check_hardened(pair.built, {LIBRARY}, tmp_path)


def test_the_library_names_no_folder_of_the_build_and_finds_the_framework_beside_it(pair: Pair, tmp_path: Path) -> None:
    grafted.check_names_no_folder(pair.built, {LIBRARY})
    with WheelFile(pair.built) as wheel:
        (tmp_path / "library.so").write_bytes(wheel.read(LIBRARY))
    said = grafted.dynamic(tmp_path / "library.so")
    assert "libtensorflow_framework.so.2" in said["DT_NEEDED"]
    assert (said.get("DT_RUNPATH") or said["DT_RPATH"]) == ["$ORIGIN"]
