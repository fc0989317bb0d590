"""Applying a .patch file to a checkout and to a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import synthetic
from lmsbuild.errors import (
    AlreadyApplied,
    DirtyCheckout,
    Failure,
    NoSuchFile,
    NotACheckout,
    OtherRelease,
    PartlyApplied,
    PatchMismatch,
)
from lmsbuild.git_command import blob_hash
from lmsbuild.patch.patch import apply_to_checkout, apply_to_folder, find_patch
from workshop import Workshop

IDENTITY = ["-c", "user.name=Someone", "-c", "user.email=someone@localhost"]


def _git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", tree, *IDENTITY, *words], capture_output=True, text=True, check=True).stdout


def _checkout(workshop: Workshop, init: bytes = synthetic.INIT) -> Path:
    tree = workshop.folder / "tree"
    for name, data in {"torch/__init__.py": init, "torch/cuda/__init__.py": synthetic.CUDA_INIT, "other": b"x"}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    _git(tree, "init", "-q")
    _git(tree, "add", "-A")
    _git(tree, "commit", "-qm", "base")
    return tree


def test_the_series_is_applied_to_a_checkout(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    done = workshop.run("patch", "v2.13.0", tree)
    assert (done.returncode, done.stdout) == (0, f"{tree}: 5 commits on top of v2.13.0\n")
    assert _git(tree, "log", "--format=%s") == "Call it\nAdd tests\nAdd Python\nAdd the glue\nAdd the pager\nbase\n"
    assert (tree / "torch/lms/__init__.py").is_file()
    assert _git(tree, "status", "--porcelain") == ""


def test_it_works_without_an_identity(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    home = workshop.folder / "home"
    home.mkdir()
    environment = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "EMAIL": ""}
    assert workshop.run("patch", "v2.13.0", tree, environment=environment).returncode == 0


def test_a_subfolder_of_a_checkout_is_no_checkout(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    with pytest.raises(NotACheckout):
        apply_to_checkout(workshop.patch, tree / "torch")


def _dirty(tree: Path) -> None:
    (tree / "other").write_text("changed")


def _staged(tree: Path) -> None:
    _dirty(tree)
    _git(tree, "add", "other")


def _no_repository(tree: Path) -> None:
    (tree / ".git").rename(tree / "moved")


def _other_blob(tree: Path) -> None:
    (tree / "torch/cuda/__init__.py").write_text("another release\n")
    _git(tree, "commit", "-qam", "another")


def _no_blob(tree: Path) -> None:
    _git(tree, "rm", "-q", "torch/cuda/__init__.py")
    _git(tree, "commit", "-qm", "gone")


def _in_the_way(tree: Path) -> None:
    (tree / "torch/lms").mkdir()
    (tree / "torch/lms/__init__.py").write_text("mine\n")


@pytest.mark.parametrize(
    ("spoil", "failure", "message"),
    [
        (_dirty, DirtyCheckout, "other"),
        (_staged, DirtyCheckout, "other"),
        (_no_repository, NotACheckout, "no git checkout"),
        (_other_blob, PatchMismatch, r"torch/cuda/__init__\.py in .* is not the file"),
        (_no_blob, PatchMismatch, r"has no torch/cuda/__init__\.py"),
        (_in_the_way, PatchMismatch, r"torch/lms/__init__\.py.* already there"),
    ],
)
def test_trees_that_do_not_fit_are_left_as_they_were(
    workshop: Workshop, spoil: object, failure: type[Failure], message: str
) -> None:
    tree = _checkout(workshop)
    assert callable(spoil)
    spoil(tree)
    files = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file() and "index" not in path.name}
    with pytest.raises(failure, match=message):
        apply_to_checkout(workshop.patch, tree)
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file() and "index" not in path.name} == files


def test_applying_twice_says_so(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    patch = workshop.patch
    assert apply_to_checkout(patch, tree) == 5
    head = _git(tree, "rev-parse", "HEAD")
    with pytest.raises(AlreadyApplied, match="already applied"):
        apply_to_checkout(patch, tree)
    assert _git(tree, "rev-parse", "HEAD") == head


def test_applying_twice_is_no_failure_when_asked(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    for count in range(2):
        done = workshop.run("patch", "v2.13.0", tree, "--idempotent")
        assert done.returncode == 0, done.stderr
        assert ("already applied" in done.stdout) == bool(count)
    done = workshop.run("patch", "v2.13.0", tree)
    assert done.returncode == AlreadyApplied.exit_code
    assert "already applied" in done.stderr
    assert len(_git(tree, "log", "--format=%s").split("\n")) == 7


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_part_of_the_patch_is_recognised(workshop: Workshop, count: int) -> None:
    tree = _checkout(workshop)
    patch = workshop.patch
    apply_to_checkout(patch, tree)
    _git(tree, "reset", "--hard", f"HEAD~{5 - count}")
    head = _git(tree, "rev-parse", "HEAD")
    for words in ((), ("--idempotent",)):
        done = workshop.run("patch", "v2.13.0", tree, *words)
        assert done.returncode == PartlyApplied.exit_code, done.stderr
        assert f"of the {len(patch.result)} files" in done.stderr and "git reset --hard" in done.stderr
    assert _git(tree, "rev-parse", "HEAD") == head


def test_an_older_version_of_the_patch_is_recognised(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    apply_to_checkout(workshop.patch, tree)
    synthetic.edit_file(workshop.patches / "src/pager/pager.h", lambda text: text + "// newer\n")
    workshop.generate()
    with pytest.raises(
        PartlyApplied, match=r"aten/src/ATen/lms/pager\.h is not as the patch leaves it.*another version"
    ):
        apply_to_checkout(workshop.patch, tree)


def test_a_git_am_that_was_left_half_way_is_recognised(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    (tree / "torch/lms").mkdir()
    (tree / "torch/lms/__init__.py").write_text("mine\n")
    patch = workshop.patch
    with pytest.raises(subprocess.CalledProcessError):
        _git(tree, "am", *map(str, patch.files))
    with pytest.raises(PartlyApplied, match="git am --abort"):
        apply_to_checkout(patch, tree)
    _git(tree, "am", "--abort")
    (tree / "torch/lms/__init__.py").unlink()
    assert apply_to_checkout(patch, tree) == 5


OLDER = b'"""An older release."""\n'


def _add_tag(workshop: Workshop, name: str, commit: str, init: bytes) -> None:
    """Adds another tag to the catalogue, whose edited files are the same but for torch/__init__.py."""
    path = workshop.patches / "catalogue/pytorch/tags.toml"
    first, _, row = path.read_text().partition("[[tag]]")
    row = row.replace(workshop.tag.commit, commit).replace("v2.13.0", name).replace("2.13.0", name[1:])
    row = row.replace(blob_hash(synthetic.INIT), blob_hash(init))
    path.write_text(f"{path.read_text()}\n[[tag]]{row}")
    assert first.startswith("package")


def test_a_tree_at_another_tag_is_named_by_its_files(workshop: Workshop) -> None:
    _add_tag(workshop, "v2.12.0", "1" * 40, OLDER)
    tree = _checkout(workshop, OLDER)
    (tree / "version.txt").write_text("2.12.0a0\n")
    _git(tree, "add", "-A")
    _git(tree, "commit", "-qm", "version")
    done = workshop.run("patch", "v2.13.0", tree)
    assert done.returncode == OtherRelease.exit_code, done.stderr
    assert f"{tree} is at v2.12.0, not at v2.13.0 (its version.txt says 2.12.0a0)" in done.stderr
    assert f"lmsbuild patch pytorch:v2.12.0 {tree}" in done.stderr


def test_a_tree_at_another_tag_with_the_same_files_is_named_by_its_commit(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    _add_tag(workshop, "v2.13.1", _git(tree, "rev-parse", "HEAD").strip(), synthetic.INIT)
    done = workshop.run("patch", "v2.13.0", tree)
    assert done.returncode == OtherRelease.exit_code, done.stderr
    assert f"{tree} is at v2.13.1, not at v2.13.0:" in done.stderr
    assert _git(tree, "log", "--format=%s") == "base\n"
    (tree / "other").write_text("my own change\n")
    _git(tree, "commit", "-qam", "mine")
    assert workshop.run("patch", "v2.13.0", tree).returncode == 0, "commits of one's own on top are no other release"


def test_the_identity_is_the_one_that_git_finds(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    settings = workshop.folder / "settings"
    settings.write_text("[user]\n\tname = Ada\n\temail = ada@localhost\n")
    environment = {"GIT_CONFIG_GLOBAL": str(settings), "EMAIL": ""}
    assert workshop.run("patch", "v2.13.0", tree, environment=environment).returncode == 0
    assert set(_git(tree, "log", "--format=%cn", "-5").split()) == {"Ada"}


def test_a_series_that_git_refuses_leaves_no_trace(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    patch = workshop.patch
    with patch.files[-1].open("a") as file:
        file.write("diff --git a/other b/other\n--- a/other\n+++ b/other\n@@ -1 +1 @@\n-y\n+z\n")
    with pytest.raises(PatchMismatch, match="git am"):
        apply_to_checkout(patch, tree)
    assert _git(tree, "log", "--format=%s") == "base\n"
    assert not (tree / ".git/rebase-apply").exists()


def test_a_folder_inside_another_checkout_is_patched_itself(workshop: Workshop) -> None:
    tree = _checkout(workshop)
    folder = tree / "dist" / "patched"
    for name, data in (("torch/__init__.py", synthetic.INIT), ("torch/cuda/__init__.py", synthetic.CUDA_INIT)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    apply_to_folder(workshop.patch, folder)
    assert (folder / "torch/lms/__init__.py").is_file()
    assert (tree / "torch/__init__.py").read_bytes() == synthetic.INIT


def test_a_folder_with_other_files_is_refused(workshop: Workshop) -> None:
    (workshop.folder / "patched/torch/cuda").mkdir(parents=True)
    (workshop.folder / "patched/torch/__init__.py").write_text("other\n")
    with pytest.raises(PatchMismatch, match=r"torch/__init__\.py.*git hash"):
        apply_to_folder(workshop.patch, workshop.folder / "patched")


def test_a_missing_patch_says_how_to_make_it(workshop: Workshop) -> None:
    workshop.patch.files[0].unlink()
    with pytest.raises(NoSuchFile, match="0001-Add-the-pager.patch .*`lmsbuild generate pytorch:v2.13.0` makes it"):
        find_patch(workshop.patches, workshop.tag)
