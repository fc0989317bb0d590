"""Getting upstream's source: from git, from the cache, from Debian's archive, and every way in which that fails."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import synthetic
import upstream
from lmsbuild.errors import (
    FolderInUse,
    NoSpace,
    NoSuchFile,
    NoSuchRevision,
    OutputNotWritable,
    SourceIncomplete,
    SourceUnreachable,
    WrongCommit,
    WrongHash,
)
from lmsbuild.fetch import apt
from lmsbuild.source import debian, source
from lmsbuild.wheel.wheel import file_sha256
from upstream import TAG, Upstream, git
from workshop import DRIVE, Workshop

pytestmark = pytest.mark.build  # starts the tool and git for every clone


@pytest.fixture
def there(workshop: Workshop) -> Upstream:
    return upstream.make(workshop)


def _leftovers(there: Upstream) -> list[Path]:
    folder = there.workshop.folder
    return [path for place in (folder, there.workshop.cache) for path in place.glob(".lmsbuild-*")]


def _is_part(tree: Path, commit: str) -> None:
    assert git(tree, "rev-parse", "HEAD").strip() == commit
    assert git(tree, "status", "--porcelain") == ""
    assert (tree / "torch/__init__.py").read_bytes() == synthetic.INIT
    assert (tree / "version.txt").read_bytes() == b"2.13.0a0\n"
    assert not (tree / "caffe2").exists()


def test_only_what_the_patch_needs_is_fetched(there: Upstream) -> None:
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tree}: {TAG} at commit {there.commit}, as the catalogue has it\n"
    _is_part(tree, there.commit)
    large = git(there.repository, "rev-parse", f"{TAG}:caffe2/large.txt").strip()
    absent = git(tree, "rev-list", "--objects", "--all", "--missing=print")
    assert f"?{large}" in absent
    assert git(tree, "rev-list", "--count", "HEAD") == "1\n"
    patched = there.run("patch", TAG, tree)
    assert patched.returncode == 0, patched.stderr
    assert (tree / "aten/src/ATen/LmsTorch.cpp").is_file()
    assert not _leftovers(there)


def test_the_whole_tree_has_its_submodules(there: Upstream) -> None:
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, "--whole")
    assert done.returncode == 0, done.stderr
    assert (tree / "third_party/part/part.h").is_file()
    assert (tree / "caffe2/large.txt").is_file()
    assert git(tree, "status", "--porcelain") == ""


@pytest.mark.parametrize("kind", ["clone", "bare", "bundle", "address", "relative"])
def test_other_sources(there: Upstream, kind: str) -> None:
    folder = there.workshop.folder
    git(folder, "clone", "-q", "--bare", there.repository, folder / "bare")
    git(there.repository, "bundle", "create", "-q", folder / "file.bundle", TAG)
    places = {"clone": there.repository, "bare": folder / "bare", "bundle": folder / "file.bundle"}
    given = places.get(kind, f"file://{folder}/bare" if kind == "address" else "bare")
    tree = folder / "tree"
    done = there.run("source", TAG, tree, "--source", given, environment=there.offline)
    assert done.returncode == 0, done.stderr
    _is_part(tree, there.commit)


def test_submodules_come_out_of_a_local_clone(there: Upstream) -> None:
    clone = there.workshop.folder / "clone"
    words = ["clone", "-q", "--recurse-submodules", there.repository, clone]
    git(there.workshop.folder, *words, environment=there.environment)
    shutil.rmtree(there.workshop.folder / "submodule")
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, "--whole", "--source", clone)
    assert done.returncode == 0, done.stderr
    assert (tree / "third_party/part/part.h").is_file()


def test_a_mirror_without_tags_serves_the_commit(there: Upstream) -> None:
    mirror = there.workshop.folder / "mirror"
    git(there.workshop.folder, "clone", "-q", "--bare", there.repository, mirror)
    git(mirror, "tag", "-d", TAG)
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, "--source", f"file://{mirror}")
    assert done.returncode == 0, done.stderr
    assert f"no tag {TAG}, but its commit" in done.stderr
    _is_part(tree, there.commit)


def test_a_cache_with_another_commit_is_damaged(there: Upstream) -> None:
    folder = there.workshop.folder
    assert there.run("source", TAG, folder / "first").returncode == 0
    (kept,) = there.workshop.cache.glob("source-*-part")
    other = git(kept, "commit-tree", f"{TAG}^{{tree}}", "-m", "other").strip()
    git(kept, "tag", "-f", TAG, other)
    done = there.run("source", TAG, folder / "second")
    assert done.returncode == 0, done.stderr
    assert "is damaged" in done.stderr
    _is_part(folder / "second", there.commit)


@pytest.mark.parametrize("kind", ["part", "whole"])
def test_a_warm_cache_needs_no_network(there: Upstream, kind: str) -> None:
    folder = there.workshop.folder
    words = ["--whole"] if kind == "whole" else []
    assert there.run("source", TAG, folder / "first", *words).returncode == 0
    shutil.rmtree(folder / "upstream")
    shutil.rmtree(folder / "submodule")
    done = there.run("source", TAG, folder / "second", *words, environment=there.offline)
    assert done.returncode == 0, done.stderr
    assert "(cached)" in done.stdout
    assert git(folder / "second", "rev-parse", "HEAD").strip() == there.commit
    assert git(folder / "second", "status", "--porcelain") == ""
    assert (folder / "second/third_party/part/part.h").exists() == (kind == "whole")
    third = there.run("source", TAG, folder / "third", environment=there.offline)
    assert third.returncode == 0, "a whole tree in the cache serves those who need a part"


def test_a_damaged_cache_is_fetched_again(there: Upstream) -> None:
    folder = there.workshop.folder
    assert there.run("source", TAG, folder / "first", "--whole").returncode == 0
    packs = [*there.workshop.cache.rglob("objects/pack/*.pack"), *there.workshop.cache.rglob("objects/??/*")]
    assert packs
    for pack in packs:
        pack.unlink()
    done = there.run("source", TAG, folder / "second", "--whole")
    assert done.returncode == 0, done.stderr
    assert "is damaged" in done.stderr
    assert git(folder / "second", "status", "--porcelain") == ""


def test_a_folder_that_is_in_use_is_left_alone(there: Upstream) -> None:
    folder = there.workshop.folder
    (folder / "full").mkdir()
    (folder / "full/mine").write_text("x")
    for tree in (folder / "full", folder / "full/mine"):
        done = there.run("source", TAG, tree)
        assert done.returncode == FolderInUse.exit_code, done.stderr
    assert (folder / "full/mine").read_text() == "x"
    (folder / "empty").mkdir()
    assert there.run("source", TAG, folder / "empty").returncode == 0


def _without_tag(there: Upstream) -> str:
    """A mirror that ends before the release."""
    mirror = there.workshop.folder / "mirror"
    upstream.commit(mirror, "older", {"version.txt": b"2.12.0a0\n"})
    return str(mirror)


def _moved_tag(there: Upstream) -> str:
    git(there.repository, "tag", "-f", TAG, "HEAD")
    return str(there.repository)


def _nowhere(there: Upstream) -> str:
    return "https://nowhere.invalid/pytorch"


def _no_repository(there: Upstream) -> str:
    (there.workshop.folder / "folder").mkdir()
    return str(there.workshop.folder / "folder")


def _no_bundle(there: Upstream) -> str:
    (there.workshop.folder / "file").write_text("no bundle")
    return str(there.workshop.folder / "file")


def _unreadable(there: Upstream) -> str:
    """A mirror that ends in the middle of what it sends."""
    mirror = there.workshop.folder / "mirror"
    git(there.workshop.folder, "clone", "-q", "--bare", "--no-local", there.repository, mirror)
    (pack,) = mirror.glob("objects/pack/*.pack")
    pack.chmod(0o644)
    pack.write_bytes(pack.read_bytes()[: pack.stat().st_size // 2])
    return str(mirror)


def _missing(there: Upstream) -> str:
    return str(there.workshop.folder / "missing")


@pytest.mark.parametrize(
    ("spoil", "failure", "message"),
    [
        (_without_tag, NoSuchRevision, f"has neither the tag {TAG} nor its commit"),
        (_moved_tag, WrongCommit, "the tag was moved"),
        (_nowhere, SourceUnreachable, "Could not resolve host"),
        (_no_repository, SourceUnreachable, "does not appear to be a git repository"),
        (_no_bundle, SourceUnreachable, "cannot fetch from"),
        (_unreadable, SourceUnreachable, "cannot fetch from"),
        (_missing, NoSuchFile, "no such clone or bundle"),
    ],
)
def test_sources_that_do_not_serve_leave_nothing(
    there: Upstream, spoil: object, failure: type[Exception], message: str
) -> None:
    assert callable(spoil)
    given = spoil(there)
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, "--source", given)
    assert done.returncode == failure.exit_code, done.stderr  # type: ignore[attr-defined]
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "--source" in done.stderr
    assert not tree.exists()
    assert not _leftovers(there)
    assert not list(there.workshop.cache.glob("source-*-part"))


def test_no_network_and_no_cache_is_said(there: Upstream) -> None:
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, environment=there.offline)
    assert done.returncode == SourceUnreachable.exit_code, done.stderr
    assert "Could not resolve" in done.stderr and "--source" in done.stderr
    assert not tree.exists()


def test_submodules_that_cannot_be_had_are_said(there: Upstream) -> None:
    shutil.rmtree(there.workshop.folder / "submodule")
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, "--whole")
    assert done.returncode == SourceIncomplete.exit_code, done.stderr
    assert "insteadOf" in done.stderr
    assert not tree.exists()


def test_a_place_that_cannot_be_written_is_said(there: Upstream) -> None:
    done = there.run("source", TAG, Path("/proc/self/tree"))
    assert done.returncode == OutputNotWritable.exit_code, done.stderr
    assert "another path" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_clone_leaves_nothing_and_the_next_run_succeeds(there: Upstream, number: signal.Signals) -> None:
    """Struck when git has fetched one half: the commit is there, the files are not."""
    folder = there.workshop.folder
    tree = folder / "tree"
    programs = folder / "programs"
    programs.mkdir()
    slow = programs / "git"
    slow.write_text(
        f'#!/bin/sh\ncase " $* " in *" checkout "*) touch "{folder}/half"; sleep 600;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    process = subprocess.Popen(
        [sys.executable, DRIVE, there.workshop.patches, "0", "-", "source", TAG, tree],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            **there.environment,
            "LMSBUILD_CACHE": str(there.workshop.cache),
            "PATH": f"{programs}:{os.environ['PATH']}",
        },
    )
    with process:
        end = time.monotonic() + 120
        while not (folder / "half").exists():
            assert time.monotonic() < end and process.poll() is None, "git never came to the checkout"
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(120)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert not tree.exists()
    assert not list(there.workshop.cache.glob("source-*-part"))
    if number != signal.SIGKILL:
        assert not _leftovers(there)
    done = there.run("source", TAG, tree)
    assert done.returncode == 0, done.stderr
    _is_part(tree, there.commit)
    assert not _leftovers(there)


def test_a_full_disk_is_said_and_leaves_nothing(there: Upstream) -> None:
    """On a small file system of our own."""
    disk = there.workshop.folder / "disk"
    disk.mkdir()
    inside = 'mount -t tmpfs -o size=64k tmpfs "$0" && "$@"; code=$?; find "$0" -mindepth 1; exit $code'
    words = [sys.executable, DRIVE, there.workshop.patches, "0", "-", "source", TAG, disk / "tree"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, disk, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **there.environment, "LMSBUILD_CACHE": str(there.workshop.cache)},
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"needs the right to mount, which this machine withholds: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (NoSpace.exit_code, ""), done.stderr


@pytest.fixture
def archive(there: Upstream) -> debian.SourcePackage:
    """Upstream's tree as Debian packs it, in the cache, where a file with the right hash is taken as it is."""
    made = there.workshop.folder / "pytorch_2.13.0+dfsg.orig.tar.xz"
    with tarfile.open(made, "w:xz") as packed:
        packed.add(there.repository, "pytorch-2.13.0", filter=lambda member: None if ".git" in member.name else member)
    package = debian.SourcePackage("pytorch", "testing", made.name, file_sha256(made))
    kept = there.workshop.cache / f"debian-{package.sha256[:8]}"
    kept.mkdir(parents=True)
    made.rename(kept / made.name)
    row = "\n".join(f'{key} = "{value}"' for key, value in vars(package).items() if value)
    with (there.workshop.patches / "catalogue/pytorch/source.toml").open("a") as table:
        table.write(f'[debian."{TAG}"]\n{row}\n')
    return package


def test_debian_is_asked_when_the_repository_cannot_be_reached(there: Upstream, archive: debian.SourcePackage) -> None:
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, environment=there.offline)
    assert done.returncode == 0, done.stderr
    assert "Could not resolve" in done.stderr
    assert f"from Debian's {archive.file}, by its sha256; it states no commit" in done.stdout
    assert (tree / "torch/__init__.py").read_bytes() == synthetic.INIT
    assert (tree / "version.txt").is_file()
    assert not (tree / "caffe2").exists()
    assert there.run("patch", TAG, tree, environment=there.offline).returncode == 0


def test_debian_is_not_asked_for_what_it_does_not_have(there: Upstream, archive: debian.SourcePackage) -> None:
    tree = there.workshop.folder / "tree"
    for words, said in ((["--whole"], True), (["--source", "https://nowhere.invalid/pytorch"], False)):
        done = there.run("source", TAG, tree, *words, environment=there.offline)
        assert done.returncode == SourceUnreachable.exit_code, done.stderr
        assert ("Debian's archive of v2.13.0 is no whole tree" in done.stderr) == said
        assert not tree.exists()


def test_an_archive_with_other_files_is_refused(there: Upstream, archive: debian.SourcePackage) -> None:
    synthetic.edit_file(
        there.workshop.patches / "catalogue/pytorch/tags.toml",
        lambda text: text.replace(there.tag.blobs["torch/__init__.py"], "0" * 40),
    )
    done = there.run("source", TAG, there.workshop.folder / "tree", environment=there.offline)
    assert done.returncode == WrongCommit.exit_code, done.stderr
    assert "torch/__init__.py" in done.stderr
    assert not (there.workshop.folder / "tree").exists()


def test_a_machine_without_debians_archive_says_so(
    there: Upstream, archive: debian.SourcePackage, tmp_path: Path
) -> None:
    with pytest.raises(apt.NotDebian, match="needs apt-get"):
        debian.fetch(archive, tmp_path / "other", configured=tmp_path)


def test_apt_that_fails_and_files_that_are_others_are_said(
    there: Upstream, archive: debian.SourcePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for apt-get, which has no network, another version, or another file."""
    (tmp_path / "sources.list").write_text("deb local:/debian stable main\n")
    program = tmp_path / "programs/apt-get"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def attempt(script: str) -> None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        debian.fetch(archive, tmp_path / "other", configured=tmp_path)

    with pytest.raises(SourceUnreachable, match="apt-get update failed: E: no network"):
        attempt("echo E: no network >&2; exit 100")
    with pytest.raises(SourceUnreachable, match="testing has another version of pytorch now"):
        attempt("touch other.orig.tar.xz")
    with pytest.raises(WrongHash, match="damaged or replaced"):
        attempt(f"echo other > '{archive.file}'")
    assert not [path for path in (tmp_path / "other").iterdir() if path.suffix != ".lock"]


def test_an_archive_cannot_write_outside_the_tree(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with tarfile.open(tmp_path / "archive.tar", "w") as packed:
        for name in ("top/../../outside", "top//outside", "top/inside"):
            packed.add(tmp_path / "file", name)
    archive = tmp_path / "archive.tar"
    debian.unpack(archive, file_sha256(archive), tmp_path / "tree", ())
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["inside"]
    assert not (tmp_path / "outside").exists()


def test_an_archive_that_was_replaced_after_it_was_fetched_is_not_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(tmp_path, "top", recursive=False)
    with pytest.raises(WrongHash, match=r"archive\.tar.*damaged or replaced"):
        debian.unpack(archive, "0" * 64, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_the_catalogues_origin_is_complete() -> None:
    from lmsbuild import paths
    from lmsbuild.catalogue import catalogue

    origin = source.read_origin(paths.patches_folder(), "pytorch")
    tags = {tag.name for tag in catalogue.tags(paths.patches_folder())}
    assert origin.address == f"https://{upstream.NAME}"
    for tag, package in origin.debian.items():
        assert tag.removeprefix("v") in package.file
        assert len(package.sha256) == 64
    assert "v2.6.0" in tags & {*origin.debian}
