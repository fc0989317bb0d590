"""Patches on upstream's real trees, which Debian's source packages have, applied by git as a packager would."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import apt
from lmsbuild.git_command import blob_hash
from lmsbuild.patch.patch import Patch, find_patch
from lmsbuild.source import source
from lmsbuild.wheel.name import parse_name

PATCHES = paths.patches_folder()
KNOWN = {tag.full_name: tag for tag in catalogue.tags(PATCHES)}
CUDA_TAG = "pytorch:v2.6.0"  # whose patched wheel is built for other tests, too
TAGS = [tag for tag in KNOWN.values() if tag.name in source.read_origin(PATCHES, tag.framework).debian]
PYTORCH = [tag for tag in TAGS if tag.framework == "pytorch"]


@dataclass(frozen=True)
class Patched:
    """A checkout of upstream's tree, with the patch applied on top of its one commit."""

    tag: catalogue.Tag
    patch: Patch
    tree: Path

    def git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", self.tree, *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", params=TAGS, ids=lambda tag: tag.full_name)
def patched(
    request: pytest.FixtureRequest, debian_tree: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Patched:
    tag = request.param
    made = Patched(tag, find_patch(PATCHES, tag), tmp_path_factory.mktemp("patched") / "tree")
    subprocess.run(["git", "clone", "--quiet", debian_tree(tag.full_name), made.tree], check=True)
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@localhost"]
    words = ["git", "-C", made.tree, *identity, "am", *sorted((PATCHES / tag.framework / tag.name).glob("*.patch"))]
    am = subprocess.run(words, capture_output=True, text=True, check=False)
    assert am.returncode == 0, am.stderr
    return made


def test_the_patch_starts_from_upstreams_files(patched: Patched) -> None:
    root = patched.git("rev-list", "--max-parents=0", "HEAD").strip()
    listed = [line.split() for line in patched.git("ls-tree", "-r", root, *patched.patch.edited).splitlines()]
    assert {name: blob for _, _, blob, name in listed} == dict(patched.patch.edited) == dict(patched.tag.blobs)
    assert patched.git("ls-tree", "-r", "--name-only", root, *patched.patch.added) == ""


def test_git_am_gives_what_the_patch_says(patched: Patched) -> None:
    result = patched.patch.result
    assert {name: blob_hash((patched.tree / name).read_bytes()) for name in result} == dict(result)
    assert patched.git("status", "--porcelain") == ""
    root = patched.git("rev-list", "--max-parents=0", "HEAD").strip()
    assert set(patched.git("diff", "--name-only", root, "HEAD").split()) == set(result)


@pytest.mark.parametrize("patched", PYTORCH, indirect=True, ids=lambda tag: tag.full_name)
def test_the_build_files_find_what_is_added(patched: Patched) -> None:
    """New sources are compiled by a full build without an edit: upstream's CMake files glob their folders."""
    cmake = (patched.tree / "aten/src/ATen/CMakeLists.txt").read_text()
    patterns = {
        word for line in cmake.splitlines() if line.lower().startswith("file(glob ") for word in line.split('"')[1::2]
    }
    added = [Path(name) for name in patched.patch.added if name.endswith(".cpp")]
    assert {"LmsPager.cpp", "LmsObserver.cpp", "LmsCuda.cpp"} <= {path.name for path in added}
    for path in added:
        assert path.relative_to("aten/src/ATen").with_name("*.cpp").as_posix() in patterns


@pytest.mark.parametrize("patched", [KNOWN[CUDA_TAG]], indirect=True, ids=[CUDA_TAG])
def test_the_graft_installs_the_same_files(patched: Patched, cuda_wheel: Path) -> None:
    assert parse_name(cuda_wheel).version.public == patched.tag.version
    installed = {name for name in patched.patch.result if name.startswith("torch/")}
    assert {*patched.patch.edited} <= installed
    with zipfile.ZipFile(cuda_wheel) as wheel:
        for name in installed:
            assert wheel.read(name) == (patched.tree / name).read_bytes(), name


BINARY = """\
# with one entry for all, as the installer writes it
Types: deb
URIs: tor://other/thing mirror://local/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /keys/debian.gpg

Types: deb
URIs: mirror://local/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("sources.list.d/debian.sources", BINARY, ["[signed-by=/keys/debian.gpg] mirror://local/debian/"]),
        ("sources.list.d/debian.sources", BINARY.replace("Types: deb\nURIs: tor", "Enabled: no\nURIs: tor"), []),
        ("sources.list.d/debian.sources", "URIs: mirror+file:/etc/debian.list\nComponents: contrib\n", []),
        ("sources.list", "# deb local:/debian x main\ndeb local:/debian x main\n", ["local:/debian"]),
        ("sources.list.d/a.list", "deb [ arch=amd64 ] local:/debian x contrib main", ["[ arch=amd64 ] local:/debian"]),
        ("sources.list", "deb local:/ubuntu x main\ndeb local:/debian x contrib\n", []),
    ],
)
def test_the_archive_is_found_in_every_kind_of_configuration(
    tmp_path: Path, name: str, text: str, entries: list[str]
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert list(apt.archives(tmp_path)) == entries
