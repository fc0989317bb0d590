"""The patch of v2.6.0 on upstream's real tree, which is Debian's source package, applied by git as a packager would."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import debian
from lmsbuild import catalogue, paths
from lmsbuild.git import blob_hash
from lmsbuild.patch import read_patch
from lmsbuild.wheel import parse_name

PATCHES = paths.patches_folder()
TAG = catalogue.find_tag(PATCHES, "v2.6.0")
PARTS = ("aten/src/ATen/", "c10/", "torch/", "test/", "CMakeLists.txt")  # what the patch may touch, and its neighbours


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git checkout of upstream's tree, with the patch applied on top."""
    archive = debian.source(
        paths.cache_folder(),
        package="pytorch",
        suite="trixie",
        file="pytorch_2.6.0+dfsg.orig.tar.xz",
        sha256="099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff",
    )
    tree = tmp_path_factory.mktemp("upstream")
    _unpack(archive, tree)
    git = ["git", "-C", tree, "-c", "user.name=Someone", "-c", "user.email=someone@localhost"]
    for words in (["init", "-q"], ["add", "--all", "--force"], ["commit", "-qm", "upstream"]):
        subprocess.run([*git, *words], check=True)
    am = subprocess.run([*git, "am", PATCHES / TAG.patch_name], capture_output=True, text=True, check=False)
    assert am.returncode == 0, am.stderr
    return tree


def _unpack(archive: Path, folder: Path) -> None:
    """Writes the files below PARTS, without the folder that the whole archive is in."""
    with tarfile.open(archive) as source:
        for member in source:
            name = member.name.partition("/")[2]
            if name.startswith(PARTS) and member.isfile():
                content = source.extractfile(member)
                assert content is not None
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content.read())


def test_git_am_gives_what_the_patch_says(tree: Path) -> None:
    patch = read_patch(PATCHES / TAG.patch_name)
    assert {name: blob_hash((tree / name).read_bytes()) for name in patch.result} == dict(patch.result)
    status = subprocess.run(["git", "-C", tree, "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert status.stdout == ""
    root = subprocess.run(
        ["git", "-C", tree, "rev-list", "--max-parents=0", "HEAD"], stdout=subprocess.PIPE, check=True
    )
    words = ["git", "-C", tree, "diff", "--name-only", root.stdout.decode().strip(), "HEAD"]
    changed = subprocess.run(words, capture_output=True, text=True, check=True)
    assert set(changed.stdout.split()) == set(patch.result)


def test_the_graft_installs_the_same_files(tree: Path, cuda_wheel: Path) -> None:
    assert parse_name(cuda_wheel).version.public == TAG.version
    patch = read_patch(PATCHES / TAG.patch_name)
    installed = [name for name in patch.result if name.startswith("torch/")]
    assert {*patch.edited} <= {*installed}
    with zipfile.ZipFile(cuda_wheel) as wheel:
        for name in installed:
            assert wheel.read(name) == (tree / name).read_bytes(), name


def test_the_build_files_find_what_is_added(tree: Path) -> None:
    """New sources are compiled by a full build without an edit: upstream's CMake files glob their folders."""
    cmake = (tree / "aten/src/ATen/CMakeLists.txt").read_text()
    patterns = {word for line in cmake.splitlines() if line.startswith("file(GLOB ") for word in line.split('"')[1::2]}
    added = [Path(name) for name in read_patch(PATCHES / TAG.patch_name).added if name.endswith(".cpp")]
    assert {path.name for path in added} == {"LmsPager.cpp", "LmsTorch.cpp", "LmsCuda.cpp"}
    for path in added:
        assert path.relative_to("aten/src/ATen").with_name("*.cpp").as_posix() in patterns


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
    assert list(debian.archives(tmp_path)) == entries
