"""A package for POWER, which has no official wheels: made by the command alone of what Debian builds, installed as any client
does, and a model trained by its Python in an emulator, with pages of 64 KiB. It takes minutes, and runs before a release.

What the emulator does not show: the speed and the memory order of a real machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import emulated_python
from lmsbuild import paths
from lmsbuild.bases import site_packages
from lmsbuild.catalogue import catalogue, debian_builds
from lmsbuild.channel import audit, channel
from lmsbuild.conda import package_file
from lmsbuild.elf import symbols
from machines import POWER, fetch_packages
from solving import install, solve

pytestmark = pytest.mark.release

PATCHES, RECIPES = paths.patches_folder(), paths.recipes_folder()
TAG = "v1.13.1"
SUBDIR = "linux-ppc64le"
LIMIT = 2 << 30  # bytes of memory that the emulator may take
TORCH = f"{emulated_python.PLACE}/site-packages/torch"


@pytest.fixture(scope="module")
def build() -> debian_builds.DebianBuild:
    found = debian_builds.find(PATCHES, catalogue.find_tag(PATCHES, TAG, "pytorch"), "ppc64le")
    assert found
    return found


@pytest.fixture(scope="module")
def package(build: debian_builds.DebianBuild, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command makes, which is told nothing but tag and platform."""
    POWER.require()
    fetch_packages(build.architecture, build.packages, paths.cache_folder())  # or the test is skipped
    output = tmp_path_factory.mktemp("power")
    words = [sys.executable, "-m", "lmsbuild", "conda", "pytorch", TAG, "--platform", SUBDIR]
    done = subprocess.run([*words, "--level", "1", "--output", output], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[0])


@pytest.fixture(scope="module")
def prefix(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the package, and with Debian's Python."""
    folder = tmp_path_factory.mktemp("installed")
    others = emulated_python.make_channel(POWER, emulated_python.fetch(POWER), folder)
    channel.publish(folder / "ours", [package])
    assert audit.check(folder / "ours", RECIPES) == 1
    records = solve((folder / "ours").as_uri(), others.as_uri(), subdir=SUBDIR, glibc="2.36")
    install(records, folder / "env", folder / "cache", subdir=SUBDIR)
    return folder / "env"


def test_what_it_is_called(package: Path) -> None:
    assert (package.parent.name, package.name) == (SUBDIR, "pytorch-1.13.1-cpu_debian_py311_lms1_1100.conda")
    (wheel,) = package.parents[1].glob("*.whl")
    assert wheel.name == "torch-1.13.1+debian.cpu.lms1-cp311-cp311-linux_ppc64le.whl"


def test_what_it_requires(package: Path, build: debian_builds.DebianBuild, prefix: Path) -> None:
    """Every library is in the package, or is one that every environment has, and no newer than the package requires."""
    depends = package_file.read_description(package)["index"]["depends"]
    assert {"typing_extensions", *build.requires} <= set(depends)
    libraries = {path.name: elf for path in (prefix / TORCH / "lib").iterdir() if (elf := site_packages.read(path))}
    needed = {name for elf in libraries.values() for name in elf.needed} - set(libraries)
    system = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld64.so.2"}
    assert needed - system == {"libgcc_s.so.1", "libgomp.so.1", "libstdc++.so.6"}
    versions = {version for name in libraries for version in symbols.needed_versions(prefix / TORCH / "lib" / name)}
    newest = {"GLIBC_2.": 0, "GLIBCXX_3.4.": 0}
    for text in versions:
        family, _, minor = text.rpartition(".")
        if f"{family}." in newest:
            newest[f"{family}."] = max(newest[f"{family}."], int(minor))
    assert f"__glibc >=2.{newest['GLIBC_2.']},<3.0a0" in depends
    assert newest["GLIBCXX_3.4."] <= 30  # what the C++ library of GCC 12 has


def test_libraries_are_for_large_pages(prefix: Path) -> None:
    for path in (prefix / TORCH).rglob("*.so*"):
        elf = site_packages.read(path)
        assert elf and elf.alignment % POWER.page == path.stat().st_size % POWER.page == 0, path


def test_every_license_comes_along(package: Path, build: debian_builds.DebianBuild) -> None:
    files = {member.name for member in package_file.members(package, only_info=True)}
    named = {name.split("/")[-2] for name in files if name.startswith("info/licenses/") and name.endswith("/copyright")}
    assert named == {*build.framework, *build.beside}
    assert any(name.endswith("/common/GPL-3") for name in files)
    rows = [
        line.split()
        for member in package_file.members(package)
        if member.name.endswith("dist-info/packages.txt") and member.file
        for line in member.file.read().decode().splitlines()
    ]
    assert {row[0] for row in rows} == set(build.packages)
    assert all(re.fullmatch(r"[0-9a-f]{64}", row[3]) for row in rows)


def test_training_in_a_third_of_the_memory(prefix: Path, tmp_path: Path) -> None:
    """The package's own test. Python loads libraries with all that they use: nothing was left out that is."""
    emulated_python.compile_modules(prefix)
    root = tmp_path / "root"
    emulated_python.make_libraries(POWER, emulated_python.fetch(POWER), root)
    shutil.copy(RECIPES / "pytorch/paging.py", tmp_path)
    printed, memory = emulated_python.run(POWER, prefix, root, [str(tmp_path / "paging.py")])
    assert "losses equal to the bit" in printed
    assert memory < LIMIT
