"""The patches of a tag: what they touch, how they are applied to a folder or to a checkout, and how they are joined."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import git_command
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.errors import (
    AlreadyApplied,
    DirtyCheckout,
    NoSpace,
    NoSuchFile,
    OtherRelease,
    PartlyApplied,
    PatchMismatch,
)
from lmsbuild.patch.checkout import Checkout, open_checkout
from lmsbuild.patch.series import read_series

_AM = ("am", "--no-3way", "--no-gpg-sign", "--no-scissors", "--quiet", "--whitespace=nowarn")
_NO_BLOB = "0" * 40
_TOUCH = re.compile(
    rb"^diff --git a/(?P<path>\S+) b/(?P=path)\n(?:new file mode \d+\n)?index (?P<old>[0-9a-f]{40})\.\.(?P<new>[0-9a-f]{40})",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Patch:
    """Commits in files, as `git am` takes them, one after the other."""

    name: str  # as messages call it
    files: tuple[Path, ...]  # in the order in which they are applied
    edited: Mapping[str, str]  # git's hash of each edited file before the series, by path
    result: Mapping[str, str]  # git's hash of every touched file after the series, by path

    @property
    def added(self) -> tuple[str, ...]:
        """The new files."""
        return tuple(path for path in self.result if path not in self.edited)

    @property
    def digest(self) -> str:
        """Tells this version of the commits from others."""
        return hashlib.sha256(self.joined).hexdigest()

    @property
    def joined(self) -> bytes:
        """All commits in one file, which `git am` takes as well."""
        return b"".join(path.read_bytes() for path in self.files)


def find_patch(patches: Path, tag: Tag) -> Patch:
    """The patches of a tag: the series of its generation and, where it has edits, its hook. Raises NoSuchFile."""
    series = read_series(patches, tag)
    files = [patches / tag.framework / "series" / commit.file_name for commit in series.commits]
    if tag.blobs:
        files.append(patches / tag.framework / tag.name / series.hook.file_name)
    name = f"the patch of {tag.framework} {tag.name}"
    for file in files:
        if not file.is_file():
            raise NoSuchFile(
                f"{file} of {name} is missing: `lmsbuild generate {tag.full_name}` makes it from its sources"
            )
    return read_patch(name, files)


def read_patch(name: str, files: Sequence[Path]) -> Patch:
    """Reads which files the commits touch. Raises NoSuchFile when one of `files` does not exist."""
    try:
        data = b"".join(path.read_bytes() for path in files)
    except OSError as error:
        raise NoSuchFile(f"cannot read {error.filename} of {name}: {error.strerror}") from error
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for touch in _TOUCH.finditer(data):
        path = touch["path"].decode()
        before.setdefault(path, touch["old"].decode())
        after[path] = touch["new"].decode()
    return Patch(name, tuple(files), {path: blob for path, blob in before.items() if blob != _NO_BLOB}, after)


def check_before(patch: Patch, found: Mapping[str, str], where: str) -> None:
    """Raises PatchMismatch unless `found` (git's hashes by path) holds every edited file as the patch expects it."""
    for name, blob in patch.edited.items():
        if name not in found:
            raise PatchMismatch(f"{where} has no {name}, which {patch.name} edits: is it another release?")
        if found[name] != blob:
            raise PatchMismatch(
                f"{name} in {where} is not the file that {patch.name} was made for (git hash {found[name]}, "
                f"expected {blob}): use the tag's own file, or a patch for that release"
            )


def apply_to_folder(patch: Patch, folder: Path) -> None:
    """Applies the patch to a folder that holds the edited files and is no checkout.

    Those that are as the patch leaves them, in a wheel that was built from the patched tree, stay so.
    """
    found = {
        name: git_command.blob_hash((folder / name).read_bytes()) for name in patch.edited if (folder / name).is_file()
    }
    done = [name for name, blob in found.items() if blob == patch.result[name]]
    check_before(patch, {**found, **{name: patch.edited[name] for name in done}}, "the base wheel")
    excluded = [f"--exclude={name}" for name in done]
    applied = git_command.run(
        folder, "apply", "--whitespace=nowarn", *excluded, *(path.resolve() for path in patch.files)
    )
    if applied.found_no_space:
        raise NoSpace(folder, "git says so")
    if applied.code:
        raise PatchMismatch(f"{patch.name} does not apply: {applied.error_text.strip()}")
    for name, blob in patch.result.items():
        if git_command.blob_hash((folder / name).read_bytes()) != blob:
            raise PatchMismatch(f"{patch.name} left {name} other than it says: generate the patch afresh")


def apply_to_checkout(
    patch: Patch, tree: Path, tag: Tag | None = None, known: Sequence[Tag] = (), patches: Path | None = None
) -> int:
    """Adds the commits to the current branch of a git checkout; returns how many that made.

    With `tag`, the patch's, a checkout of another one of the `known` tags is refused even when the edited files are the
    same there; `patches` is where theirs are. Raises MissingProgram, NotACheckout, OtherOwner, UnsafeSource,
    DirtyCheckout, AlreadyApplied, PartlyApplied, OtherRelease or PatchMismatch; the checkout is then as it was.
    """
    checkout = open_checkout(tree)
    if (checkout.git_folder / "rebase-apply").exists():
        raise PartlyApplied(f"{tree} is amid a git am or rebase: end it first, or give up with `git am --abort`")
    changed = checkout.changed()
    if changed:
        raise DirtyCheckout(
            f"{tree} has uncommitted changes ({', '.join(sorted(changed)[:3])}): commit or stash them first"
        )
    found = checkout.blobs([*patch.edited, *patch.added])
    _check_not_applied(patch, found, tree, [other for other in known if other != tag], patches)
    _check_release(patch, checkout, found, tree, tag, known)
    check_before(patch, found, str(tree))
    # What a commit says of a file is one thing, what is in the folder and what git has kept of it are others.
    check_before(patch, {**found, **checkout.written([*patch.edited])}, str(tree))
    for name in patch.added:
        if name in found or (tree / name).exists():
            raise PatchMismatch(f"{name}, which {patch.name} adds, is already there: remove it, or use a clean tree")
    before = checkout.head
    _am(patch, checkout, before)
    return int(checkout.git("rev-list", "--count", f"{before}..HEAD").text)


def _check_not_applied(
    patch: Patch, found: Mapping[str, str], tree: Path, others: Sequence[Tag], patches: Path | None
) -> None:
    if found == patch.result:
        raise AlreadyApplied(f"{patch.name} is already applied to {tree}; nothing to do")
    done = [name for name, blob in patch.result.items() if found.get(name) == blob]
    if done:
        for other in others:
            if patches and _is_applied(patches, other, found):
                raise OtherRelease(f"{tree} is at {other.name}, and has the patch of that release applied already")
        lacking = next(name for name, blob in patch.result.items() if found.get(name) != blob)
        raise PartlyApplied(
            f"{tree} has {len(done)} of the {len(patch.result)} files of {patch.name}, but {lacking} is not as the "
            "patch leaves it: a part of the patch, or another version of it, is applied. Go back to the tag "
            "(`git reset --hard TAG`) and apply it again; docs/manual-apply.md says how to keep commits of your own"
        )


def _is_applied(patches: Path, tag: Tag, found: Mapping[str, str]) -> bool:
    try:
        result = find_patch(patches, tag).result
    except NoSuchFile:
        return False
    return all(found.get(name) == blob for name, blob in result.items())


def _check_release(
    patch: Patch,
    checkout: Checkout,
    found: Mapping[str, str],
    tree: Path,
    tag: Tag | None,
    known: Sequence[Tag],
) -> None:
    """Raises OtherRelease when the checkout is at another known tag, by its commit or by the edited files."""
    if tag is None:
        return
    head = checkout.head
    known = [other for other in known if other.framework == tag.framework]
    others = [other for other in known if head.startswith(other.commit) and other.name != tag.name]
    if not others and any(found.get(name) != blob for name, blob in patch.edited.items()):
        # Of edited files that no tag has there is a better message, which names the file.
        others = [other for other in known if other.blobs and other.blobs == checkout.blobs(other.blobs)]
    if others:
        version = checkout.text("version.txt")
        states = f" (its version.txt says {version.strip()})" if version else ""
        raise OtherRelease(
            f"{tree} is at {' or '.join(other.name for other in others)}, not at {tag.name}{states}: check out {tag.name}, "
            f"or apply the patch of that release with `lmsbuild patch {others[0].full_name} {tree}`"
        )


def _am(patch: Patch, checkout: Checkout, before: str) -> None:
    applied = checkout.git(*_identity(checkout.root), *_AM, *(path.resolve() for path in patch.files))
    if applied.code:
        checkout.git("am", "--abort")
        raise PatchMismatch(f"git am of {patch.name} failed: {applied.error_text.strip()}")
    if checkout.blobs(patch.result) != patch.result:
        checkout.git("reset", "--quiet", "--hard", before)
        raise PatchMismatch(
            f"git am made other files in {checkout.root} than {patch.name} says: an object of git's is not what its name says. "
            "`git fsck` finds it; clone the framework afresh"
        )


def am_words(root: Path) -> list[str | Path]:
    """The command that applies a patch to the checkout `root`, less the patch; commits need an identity."""
    return ["git", "-C", root, *_identity(root), *_AM]


def _identity(root: Path) -> tuple[str, ...]:
    """What git is told where it knows no identity."""
    known = git_command.run_as_user(root if root.is_dir() else Path(os.sep), "var", "GIT_COMMITTER_IDENT").code == 0
    return () if known else ("-c", "user.name=lmsbuild", "-c", "user.email=lmsbuild@localhost")
