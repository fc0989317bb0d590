"""The committed patch of every tag; that of the first tag of a generation, and before a release of every other, against the
files of its official wheel, to which git applies it in every way.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.fetch import blobs, ranged
from lmsbuild.git_command import blob_hash
from lmsbuild.graft import graft
from lmsbuild.patch import generate
from lmsbuild.patch.edits import read_edits
from lmsbuild.patch.patch import find_patch

PATCHES = paths.patches_folder()
TAGS = catalogue.tags(PATCHES)
FIRST = {(tag.framework, tag.generation): tag for tag in reversed(TAGS)}.values()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(tag, marks=pytest.mark.build if tag in FIRST else pytest.mark.release, id=tag.full_name)
        for tag in TAGS
    ],
)
def tag(request: pytest.FixtureRequest) -> Tag:
    found: Tag = request.param
    return found


links = cache(ranged.links)


@pytest.fixture(scope="module")
def originals(tag: Tag) -> dict[str, bytes]:
    """The edited files; no server is asked for what is in the cache."""
    folder = paths.cache_folder()
    return graft.originals(
        PATCHES, tag, folder, None, links(tag.package) if blobs.load(folder, tag.blobs) is None else None
    )


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


def test_tags_with_the_same_files_have_the_same_patch() -> None:
    """So that what is tried of one holds for all of them."""
    known: dict[tuple[object, ...], Tag] = {}
    for tag in TAGS:
        first = known.setdefault((tag.framework, tag.generation, *sorted(tag.blobs.items())), tag)
        assert find_patch(PATCHES, tag).joined == find_patch(PATCHES, first).joined, (first.name, tag.full_name)


def test_every_hook_adds_what_the_edits_say() -> None:
    """Without the wheels: the lines for each file, if not where."""
    for tag in TAGS:
        wanted: dict[str, list[str]] = {}
        for edit in read_edits(PATCHES, tag):
            if edit.path in tag.blobs:
                wanted.setdefault(edit.path, []).extend((edit.before + edit.after).splitlines())
        assert {path: sorted(lines) for path, lines in _added(tag).items()} == {
            path: sorted(lines) for path, lines in wanted.items()
        }, tag.full_name


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
    ways = (
        ["am", joined],
        ["am", *sorted(folder.glob("*.patch"))],
        ["quiltimport", "--patches", folder, "--series", queue],
    )
    for words in ways:
        subprocess.run([*git, "reset", "--quiet", "--hard", "base"], check=True)
        done = subprocess.run([*git, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "whitespace" not in done.stderr
        trees.add(subprocess.run([*git, "rev-parse", "HEAD^{tree}"], capture_output=True, check=True).stdout)
    assert len(trees) == 1
    # The graft takes the files from the patch and checks them against these hashes.
    assert {name: blob_hash((tree / name).read_bytes()) for name in patch.result} == dict(patch.result)


def test_the_edits_are_few_and_only_add() -> None:
    """The smallest edits: no line of an existing file is removed or changed."""
    for tag in TAGS:
        removed = [line for lines in _changed(tag).values() for line in lines if line.startswith("-")]
        assert (removed, max(map(len, _added(tag).values()), default=0) <= 20) == ([], True), tag.full_name


def _added(tag: Tag) -> dict[str, list[str]]:
    return {path: [line[1:] for line in lines if line.startswith("+")] for path, lines in _changed(tag).items()}


def _changed(tag: Tag) -> dict[str, list[str]]:
    """The lines that the patch adds to and removes from each file of upstream's, with their signs."""
    found = {}
    for part in find_patch(PATCHES, tag).joined.decode().split("diff --git ")[1:]:
        lines = part.split("\n-- \n")[0].splitlines()
        if not any(line.startswith("new file mode") for line in lines):
            path = lines[0].rpartition(" b/")[2]
            found[path] = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return found
