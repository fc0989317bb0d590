"""The committed patch of every tag, against the files of its official wheel.

git applies each as one file; those of the first tag of a generation, and with LMS_TEST_FULL=1 all, in every other way, too.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.fetch import blobs, ranged
from lmsbuild.git_command import blob_hash
from lmsbuild.graft import graft
from lmsbuild.patch import generate
from lmsbuild.patch.patch import find_patch
from samples import FULL

PATCHES = paths.patches_folder()
TAGS = catalogue.tags(PATCHES)
FIRST = {(tag.framework, tag.generation): tag for tag in reversed(TAGS)}.values()


@pytest.fixture(scope="module")
def everything() -> dict[str, dict[str, bytes]]:
    """The edited files of every tag; fetched side by side, for there are many, and kept in the cache from then on.

    When all are there, no server is asked for anything.
    """
    cache = paths.cache_folder()
    lacking = {tag.package for tag in TAGS if blobs.load(cache, tag.blobs) is None}
    links = {package: ranged.links(package) for package in lacking}
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda tag: graft.originals(PATCHES, tag, cache, None, links.get(tag.package)), TAGS)
        return {tag.full_name: files for tag, files in zip(TAGS, found, strict=True)}


@pytest.fixture(scope="module", params=TAGS, ids=lambda tag: tag.full_name)
def tag(request: pytest.FixtureRequest) -> Tag:
    found: Tag = request.param
    return found


@pytest.fixture
def originals(tag: Tag, everything: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    return everything[tag.full_name]


def test_every_edited_file_is_upstreams_own(tag: Tag, originals: dict[str, bytes]) -> None:
    patch = find_patch(PATCHES, tag)
    assert dict(patch.edited) == dict(tag.blobs) == {name: blob_hash(data) for name, data in originals.items()}


def test_the_hook_is_what_the_edits_generate(tag: Tag, originals: dict[str, bytes]) -> None:
    assert generate.stale(generate.hook(PATCHES, tag, originals)) == []


@pytest.mark.parametrize("framework", catalogue.frameworks(PATCHES))
def test_series_and_links_are_what_the_sources_generate(framework: str) -> None:
    wanted = generate.series(PATCHES, framework)
    assert generate.present(wanted) == wanted


def test_the_hooks_start_from_the_files_of_the_catalogue() -> None:
    """Without the wheels: what the index lines of a hook say, [tag.blobs] says."""
    assert {tag.full_name: dict(find_patch(PATCHES, tag).edited) for tag in TAGS} == {
        tag.full_name: dict(tag.blobs) for tag in TAGS
    }


def test_git_am_and_quiltimport_apply_it(tag: Tag, originals: dict[str, bytes], tmp_path: Path) -> None:
    patch = find_patch(PATCHES, tag)
    tree = tmp_path / "tree"
    tree.mkdir()  # a patch may edit no file
    for name, data in originals.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    git = ["git", "-C", tree, "-c", "user.name=Someone", "-c", "user.email=someone@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "--allow-empty", "-qm", "base"], ["tag", "base"]):
        subprocess.run([*git, *words], check=True)
    folder = PATCHES / tag.framework / tag.name
    queue = tmp_path / "series"
    queue.write_text("".join(f"{path.name}\n" for path in sorted(folder.glob("*.patch"))))
    joined = tmp_path / tag.patch_name
    joined.write_bytes(patch.joined)
    trees = set()
    ways = [["am", joined]]
    if FULL or tag in FIRST:
        ways.append(["am", *sorted(folder.glob("*.patch"))])
        ways.append(["quiltimport", "--patches", folder, "--series", queue])
    for words in ways:
        subprocess.run([*git, "reset", "--quiet", "--hard", "base"], check=True)
        done = subprocess.run([*git, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "whitespace" not in done.stderr
        trees.add(subprocess.run([*git, "rev-parse", "HEAD^{tree}"], capture_output=True, check=True).stdout)
    assert len(trees) == 1
    # The graft takes the files from the patch and checks them against these hashes.
    assert {name: blob_hash((tree / name).read_bytes()) for name in patch.result} == dict(patch.result)


def test_the_edits_are_few_and_only_add(tag: Tag) -> None:
    """The smallest edits: no line of an existing file is removed or changed."""
    text = find_patch(PATCHES, tag).joined.decode()
    for part in text.split("diff --git ")[1:]:
        lines = part.split("\n-- \n")[0].splitlines()
        if "new file mode" in part:
            continue
        removed = [line for line in lines if line.startswith("-") and not line.startswith("---")]
        added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
        assert removed == []
        assert len(added) <= 20
