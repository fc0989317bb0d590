"""No code of a source runs, and nothing in it is taken for what it is not: clones, caches and checkouts that were prepared.

An attack has git create the file `mark`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import upstream
from lmsbuild import report
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.errors import (
    Failure,
    NotACheckout,
    OtherOwner,
    PatchMismatch,
    SourceIncomplete,
    SourceUnreachable,
    UnsafeSource,
)
from lmsbuild.patch.patch import Patch, apply_to_checkout, read_patch
from lmsbuild.source import address, source
from upstream import git

TAG = "v9.0.0"
PART = "third_party/part"
CONTENT = b"what the commit has\n"
OTHER = b"what somebody made of it\n"
BOTH = ".gitattributes"

pytestmark = [pytest.mark.build, pytest.mark.timeout(60)]  # a git that waits at a pipe is not waited for


@dataclass(frozen=True)
class Site:
    """A clone with a submodule, a tree with a patch, and who looks at them."""

    folder: Path
    commit: str

    @property
    def clone(self) -> Path:
        return self.folder / "clone"

    @property
    def module(self) -> Path:
        """The repository of the clone's submodule."""
        return self.clone / ".git/modules" / PART

    @property
    def mark(self) -> Path:
        return self.folder / "mark"

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def patch(self) -> Patch:
        return read_patch("the patch", [self.folder / "0001-change.patch"])

    def obtain(self, given: str | Path, *, whole: bool = True) -> str:
        nothing = dict.fromkeys(("cuda", "abi", "standard", "generation", "trained"), "")
        known = {"package": "x", "packages": ("x",), "framework": "x", "name": TAG, "version": TAG[1:]}
        tag = Tag(**known, **nothing, commit=self.commit, supports=(), wheels={}, blobs={}, records={})
        options = source.Options(tag, self.folder, self.folder / "cache", self.folder / "made", str(given), whole)
        return source.obtain(options)

    def program(self, name: str = "program") -> Path:
        """A program that leaves the mark, and passes on what it is given."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\ntouch '{self.mark}'\ncat\n")
        file.chmod(0o755)
        return file


@pytest.fixture(scope="session")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folders of a site, and the commit of its clone."""
    folder = tmp_path_factory.mktemp("site")
    attributes = {BOTH: b"*.txt filter=own diff=own merge=own\n", "file.txt": CONTENT, "other.txt": CONTENT}
    upstream.commit(folder / "part", "part", attributes)
    clone = folder / "clone"
    clone.mkdir()
    git(clone, "init", "-q")
    git(clone, "submodule", "-q", "add", folder / "part", PART)
    git(clone, "config", "--file", ".gitmodules", f"submodule.{PART}.url", "https://nowhere.invalid/part")
    commit = upstream.commit(clone, "release", attributes)
    git(clone, "tag", TAG)
    tree = folder / "tree"
    upstream.commit(tree, "base", attributes)
    upstream.commit(tree, "change", {"file.txt": CONTENT + b"and a line\n", "new.txt": b"new\n"})
    git(tree, "format-patch", "-q", "--full-index", "-1", "-o", folder)
    git(tree, "reset", "-q", "--hard", "HEAD~1")
    (folder / "catalogue/x").mkdir(parents=True)
    (folder / "catalogue/x/source.toml").write_text('repository = "nowhere.invalid/x"\nfolders = ["third_party"]\n')
    return folder, commit


@pytest.fixture
def site(pattern: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    shutil.copytree(pattern[0], tmp_path / "site")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "site/gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "site/gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@localhost\n")
    return Site(tmp_path / "site", pattern[1])


def _set(repository: Path, name: str, value: str | Path) -> None:
    git(repository, "config", name, value)


def _hook(repository: Path, site: Site, *names: str) -> None:
    for name in names:
        (repository / "hooks").mkdir(exist_ok=True)
        shutil.copy2(site.program(), repository / "hooks" / name)


def _include(repository: Path, site: Site) -> None:
    included = site.folder / "included"
    included.write_text(f'[core]\n\tfsmonitor = {site.program()}\n[filter "own"]\n\tsmudge = {site.program()}\n')
    included.write_text(included.read_text() + f"\tclean = {site.program()}\n")
    _set(repository, "include.path", included)


def _filters(repository: Path, site: Site) -> None:
    for what in ("clean", "smudge"):
        _set(repository, f"filter.own.{what}", site.program())
    _set(repository, "filter.own.required", "true")


def _promisor(repository: Path, site: Site) -> None:
    """An object that is missing is fetched from a remote, by way of a program."""
    _set(repository, "extensions.partialClone", "evil")
    _set(repository, "remote.evil.promisor", "true")
    _set(repository, "remote.evil.url", site.folder / "part")
    _set(repository, "remote.evil.uploadpack", site.program())
    _loose(repository, f"{_head(repository)}:other.txt").unlink()


def _head(repository: Path) -> str:
    return git(repository, "rev-parse", "HEAD").strip()


def _loose(repository: Path, revision: str) -> Path:
    name = git(repository, "rev-parse", revision).strip()
    folder = Path(git(repository, "rev-parse", "--absolute-git-dir").strip())
    return folder / "objects" / name[:2] / name[2:]


def _replace(repository: Path, revision: str) -> None:
    """Puts other bytes under the name of an object."""
    file = _loose(repository, revision)
    file.unlink()
    file.write_bytes(zlib.compress(b"blob %d\0" % len(OTHER) + OTHER))


PROGRAMS: dict[str, Callable[[Path, Site], None]] = {
    "hooks": lambda at, site: _hook(at, site, "post-checkout", "post-index-change", "reference-transaction"),
    "hooksPath": lambda at, site: (
        _hook(site.folder, site, "post-checkout", "applypatch-msg", "post-index-change"),
        _set(at, "core.hooksPath", site.folder / "hooks"),
    )[-1],
    "fsmonitor": lambda at, site: _set(at, "core.fsmonitor", site.program()),
    "filters": _filters,
    "include": _include,
    "textconv": lambda at, site: _set(at, "diff.own.textconv", site.program()),
    "diff": lambda at, site: _set(at, "diff.external", site.program()),
    "sshCommand": lambda at, site: _set(at, "core.sshCommand", site.program()),
    "packObjectsHook": lambda at, site: _set(at, "uploadpack.packObjectsHook", site.program()),
}


@pytest.mark.parametrize("attack", PROGRAMS)
def test_nothing_that_a_clone_names_runs(site: Site, attack: str) -> None:
    for repository in (site.clone / ".git", site.module):
        PROGRAMS[attack](repository, site)
    site.obtain(site.clone)
    assert not site.mark.exists()
    made = site.folder / "made"
    for file in (made / "file.txt", made / PART / "file.txt"):
        assert file.read_bytes() == CONTENT
    assert git(made, "status", "--porcelain") == ""
    assert git(made, "submodule", "status").startswith(f" {_head(made / PART)} {PART}")
    assert git(made, "config", "remote.origin.url").strip() == str(site.clone)


@pytest.mark.parametrize("where", ["clone", "module"])
def test_a_missing_object_is_not_fetched_by_what_a_clone_names(site: Site, where: str) -> None:
    _promisor(site.clone if where == "clone" else site.clone / PART, site)
    with pytest.raises((SourceUnreachable, SourceIncomplete)):
        site.obtain(site.clone)
    assert not site.mark.exists()


def test_the_users_templates_and_filters_do_not_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.program("template/hooks/post-checkout")
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(site.folder / "template"))
    settings = site.folder / "gitconfig"
    settings.write_text(
        f'[init]\n\ttemplateDir = {site.folder}/template\n[filter "own"]\n\tsmudge = {site.program()}\n'
    )
    site.obtain(site.clone)
    assert not site.mark.exists()


@pytest.mark.parametrize("where", ["", PART])
def test_an_object_that_was_replaced_is_found(site: Site, where: str) -> None:
    _replace(site.clone / where, "HEAD:file.txt")
    with pytest.raises((SourceUnreachable, SourceIncomplete)):
        site.obtain(site.clone)
    assert not (site.folder / "made").exists()


def _replace_in_cache(git_folder: Path) -> None:
    (pack,) = git_folder.glob("objects/pack/*.pack")
    moved = pack.rename(git_folder / "pack")
    with moved.open("rb") as stream:
        subprocess.run(["git", "-C", git_folder, "unpack-objects", "-q"], stdin=stream, check=True)
    _replace(git_folder, "HEAD:file.txt")


CACHES: dict[str, Callable[[Path, Site], None]] = {
    "object": lambda kept, site: _replace_in_cache(kept),
    "object of a submodule": lambda kept, site: _replace_in_cache(kept / "modules" / PART),
    "pipe": lambda kept, site: os.mkfifo(kept / "objects/info/alternates"),
    "no submodule": lambda kept, site: shutil.rmtree(kept / "modules"),
}


@pytest.mark.parametrize("damage", CACHES)
def test_a_cache_that_was_changed_is_fetched_anew(site: Site, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    site.obtain(site.clone)
    shutil.rmtree(site.folder / "made")
    (kept,) = (site.folder / "cache").glob("source-*-whole")
    CACHES[damage](kept, site)
    assert "(cached)" not in site.obtain(site.clone)
    assert "is damaged; fetching it again" in capsys.readouterr().err
    for file in ("file.txt", f"{PART}/file.txt"):
        assert (site.folder / "made" / file).read_bytes() == CONTENT


@pytest.mark.parametrize("attack", ["hooks", "fsmonitor", "filters"])
def test_nothing_that_a_cache_names_runs(site: Site, attack: str) -> None:
    site.obtain(site.clone)
    shutil.rmtree(site.folder / "made")
    (kept,) = (site.folder / "cache").glob("source-*-whole")
    for repository in (kept, kept / "modules" / PART):
        PROGRAMS[attack](repository, site)
    assert "(cached)" in site.obtain(site.clone)
    assert not site.mark.exists()


@pytest.mark.parametrize(
    "given",
    ["ext::sh -c touch% {mark}", "fd::17", "x::y", "ftp://nowhere.invalid/x", "-u{mark}:x", "x://y", "https:x\n"],
)
def test_addresses_of_helper_programs_are_refused(site: Site, given: str) -> None:
    with pytest.raises(UnsafeSource):
        site.obtain(given.format(mark=site.mark))
    assert not site.mark.exists()


@pytest.mark.parametrize(
    ("name", "path", "url", "failures"),
    [
        ("part", "part", "ext::sh -c touch% {mark}", (UnsafeSource, SourceUnreachable)),
        ("part", "part", "file://{folder}/part", (UnsafeSource,)),
        ("part", "part", "{folder}/part", (UnsafeSource,)),
        ("part", "part", "http://nowhere.invalid/part", (UnsafeSource,)),
        ("part", "part", "-u{mark}", (UnsafeSource, SourceUnreachable)),
        ("../../outside", "part", "https://nowhere.invalid/part", (UnsafeSource, SourceUnreachable)),
        ("/outside", "part", "https://nowhere.invalid/part", (UnsafeSource,)),
        ("a/.GIT/b", "part", "https://nowhere.invalid/part", (UnsafeSource,)),
        ("-part", "part", "https://nowhere.invalid/part", (UnsafeSource,)),
        ("a//part", "part", "https://nowhere.invalid/part", (UnsafeSource,)),
        ("part", "other", "https://nowhere.invalid/part", (SourceIncomplete,)),
    ],
)
def test_gitmodules_name_nothing_but_folders_below_and_https(
    site: Site, name: str, path: str, url: str, failures: tuple[type[Failure], ...]
) -> None:
    address_ = url.format(mark=site.mark, folder=site.folder)
    clone = site.folder / "evil"
    text = f'[submodule "{name}"]\n\tpath = {path}\n\turl = {address_}\n'
    upstream.commit(clone, "release", {".gitmodules": text.encode()})
    git(clone, "update-index", "--add", "--cacheinfo", f"160000,{_head(site.clone / PART)},part")
    git(clone, "commit", "-qm", "submodule")
    git(clone, "tag", TAG)
    with pytest.raises(failures):
        Site(site.folder, _head(clone)).obtain(clone)
    assert not site.mark.exists()
    assert not (site.folder / "made").exists()


@pytest.mark.parametrize(
    ("base", "relative", "meant"),
    [
        ("https://host/a/b", "../c.git", "https://host/a/c.git"),
        ("https://host/a/b/", "./c", "https://host/a/b/c"),
        ("https://host/a/b", "../../c/d/", "https://host/c/d"),
        ("host:a", "../c", "host:c"),
        ("/srv/a", "../c", "/srv/c"),
        ("/srv/a", "https://host/c", "https://host/c"),
    ],
)
def test_relative_addresses(base: str, relative: str, meant: str) -> None:
    assert address.resolved(base, relative) == meant


def test_passwords_are_not_shown() -> None:
    said = "cannot fetch from https://ada:secret@host/x, nor https://ada@host:80/x@y, nor ssh://host:22/x"
    assert report.masked(said) == said.replace("secret", "***")


PIPES: dict[str, Callable[[Path], None]] = {
    "alternates": lambda at: os.mkfifo(at / "objects/info/alternates"),
    "object": lambda at: (shutil.rmtree(at / "objects/ab", ignore_errors=True), os.mkfifo(at / "objects/ab"))[-1],
    "attributes": lambda at: (shutil.rmtree(at / "info"), (at / "info").mkdir(), os.mkfifo(at / "info/attributes"))[-1],
    "settings": lambda at: ((at / "config").unlink(), os.mkfifo(at / "config"))[-1],
    "head": lambda at: ((at / "HEAD").unlink(), os.mkfifo(at / "HEAD"))[-1],
    "included": lambda at: (os.mkfifo(at.parent / "pipe"), _set(at, "include.path", "../pipe"))[-1],
    "included under a condition": lambda at: (
        os.mkfifo(at.parent / "pipe"),
        _set(at, "includeIf.gitdir:/**.path", at.parent / "pipe"),
    )[-1],
    "included by another": lambda at: (
        os.mkfifo(at.parent / "pipe"),
        (at / "more").write_text("[include]\n\tpath = ../pipe\n"),
        _set(at, "include.path", "more"),
    )[-1],
    "lent": lambda at: (
        (at.parent / "lent/info").mkdir(parents=True),
        (at / "objects/info/alternates").write_text("../../lent\n"),
        os.mkfifo(at.parent / "lent/info/alternates"),
    )[-1],
}


@pytest.mark.parametrize("pipe", PIPES)
def test_pipes_are_not_waited_for(site: Site, pipe: str) -> None:
    for repository in (site.clone / ".git", site.tree / ".git"):
        PIPES[pipe](repository)
    with pytest.raises(UnsafeSource, match="a pipe or a device"):
        site.obtain(site.clone)
    with pytest.raises(UnsafeSource, match="a pipe or a device"):
        apply_to_checkout(site.patch, site.tree)


def test_a_pipe_in_a_submodule_or_a_checkout_is_not_waited_for(site: Site) -> None:
    (site.module / "config").unlink()
    os.mkfifo(site.module / "config")
    with pytest.raises(UnsafeSource, match="a pipe or a device"):
        site.obtain(site.clone)
    for name in (BOTH, ".gitmodules"):
        (site.tree / name).unlink(missing_ok=True)
        os.mkfifo(site.tree / name)
        with pytest.raises(UnsafeSource, match="a pipe or a device"):
            apply_to_checkout(site.patch, site.tree)
        (site.tree / name).unlink()


def test_a_pipe_is_no_clone(site: Site) -> None:
    os.mkfifo(site.folder / "pipe")
    with pytest.raises(SourceUnreachable, match="does not appear to be a git repository"):
        site.obtain(site.folder / "pipe")


def test_another_users_repository_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable by which git's own tests have git see another user."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(OtherOwner, match=rf"belongs to .*safe\.directory {site.clone}"):
        site.obtain(site.clone)
    with pytest.raises(OtherOwner, match=rf"belongs to .*safe\.directory {site.tree}"):
        apply_to_checkout(site.patch, site.tree)
    git(site.folder, "config", "--global", "--add", "safe.directory", site.tree)
    assert apply_to_checkout(site.patch, site.tree) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to give files away")
def test_another_users_name_is_said(site: Site) -> None:
    for path in (site.tree, site.tree / ".git"):
        os.chown(path, 54321, -1)
    with pytest.raises(OtherOwner, match="belongs to user 54321"):
        apply_to_checkout(site.patch, site.tree)


def _nameless_filter(repository: Path, site: Site) -> None:
    (repository / "info").mkdir(exist_ok=True)
    (repository / "info/attributes").write_text("*.txt filter=\n")
    _set(repository, "filter..clean", site.program())


IN_A_CHECKOUT: dict[str, Callable[[Path, Site], None]] = {
    **PROGRAMS,
    "hooks": lambda at, site: _hook(
        at,
        site,
        *("applypatch-msg", "pre-applypatch", "post-applypatch", "commit-msg", "pre-commit", "post-index-change"),
        *("reference-transaction", "pre-auto-gc", "post-rewrite"),
    ),
    "configured hook": lambda at, site: (
        _set(at, "hook.own.command", site.program()),
        _set(at, "hook.own.event", "post-index-change"),
    )[-1],
    "signature": lambda at, site: (_set(at, "commit.gpgSign", "true"), _set(at, "gpg.program", site.program()))[-1],
    "merge": lambda at, site: (_set(at, "am.threeWay", "true"), _set(at, "merge.own.driver", site.program()))[-1],
    "filter process": lambda at, site: _set(at, "filter.own.process", site.program()),
    "filter without a name": lambda at, site: _nameless_filter(at, site),
    "editor": lambda at, site: _set(at, "core.editor", site.program()),
}


@pytest.mark.parametrize("attack", IN_A_CHECKOUT)
def test_nothing_that_a_checkout_names_runs(site: Site, attack: str) -> None:
    for file in site.tree.glob("*.txt"):  # so that git has to read them again
        os.utime(file, (1, 1))
    IN_A_CHECKOUT[attack](site.tree / ".git", site)
    assert apply_to_checkout(site.patch, site.tree) == 1
    assert not site.mark.exists()
    assert (site.tree / "file.txt").read_bytes() == CONTENT + b"and a line\n"


def test_the_identity_in_the_settings_is_used(site: Site) -> None:
    _set(site.tree, "user.name", "Grace")
    apply_to_checkout(site.patch, site.tree)
    assert git(site.tree, "log", "-1", "--format=%cn %ce").strip() == "Grace ada@localhost"


def test_a_checkout_of_git_worktree_is_patched(site: Site) -> None:
    git(site.tree, "worktree", "add", "-q", "--detach", site.folder / "beside")
    assert apply_to_checkout(site.patch, site.folder / "beside") == 1
    assert (site.folder / "beside/new.txt").is_file() and not (site.tree / "new.txt").exists()


def test_settings_do_not_lead_git_elsewhere(site: Site) -> None:
    elsewhere = site.folder / "elsewhere"
    shutil.copytree(site.tree, elsewhere, ignore=shutil.ignore_patterns(".git"))
    _set(site.tree, "core.worktree", elsewhere)
    with pytest.raises((UnsafeSource, NotACheckout)):
        apply_to_checkout(site.patch, site.tree)
    assert not (elsewhere / "new.txt").exists()


def test_a_name_that_cannot_be_switched_off_is_refused(site: Site) -> None:
    _set(site.tree, "filter.a=b.clean", site.program())
    with pytest.raises(UnsafeSource, match="a=b"):
        apply_to_checkout(site.patch, site.tree)


def test_a_replaced_object_does_not_get_into_a_patched_checkout(site: Site) -> None:
    """Where a sparse checkout leaves the edited file out, git takes it from its objects."""
    _replace(site.tree, "HEAD:file.txt")
    git(site.tree, "update-index", "--skip-worktree", "file.txt")
    (site.tree / "file.txt").unlink()
    head = _head(site.tree)
    with pytest.raises(PatchMismatch):
        apply_to_checkout(site.patch, site.tree)
    assert _head(site.tree) == head


def test_a_change_that_git_was_told_to_overlook_is_found(site: Site) -> None:
    git(site.tree, "update-index", "--assume-unchanged", "file.txt")
    (site.tree / "file.txt").write_bytes(CONTENT + b"mine\n")
    with pytest.raises(PatchMismatch, match="file.txt"):
        apply_to_checkout(site.patch, site.tree)
    assert (site.tree / "file.txt").read_bytes() == CONTENT + b"mine\n"
