"""Makes the .patch files: the series, from the sources alone, and each tag's hook, from the files that it edits as well.

    patches/<framework>/series/000N-….patch   the added files: one commit each, shared by every tag of a generation
    patches/<framework>/<tag>/000N-….patch    links to them, and the hook: the last one, where the tag has an edit

The result depends on the sources and on the edited files of the official wheel alone, never on who generates it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from lmsbuild import git_command, paths
from lmsbuild.catalogue.catalogue import Tag, tags
from lmsbuild.catalogue.rows import replace_file
from lmsbuild.errors import BadSources
from lmsbuild.patch.edits import apply_edits, read_edits
from lmsbuild.patch.patch import read_patch
from lmsbuild.patch.series import Commit, Series, new_files, owner, read_series

_AUTHOR = "Large Model Support"
_EMAIL = "lms@users.noreply.github.com"
_DATE = 1767225600  # 2026-01-01, seconds; each commit is one second later than the one before


Wanted = dict[Path, "bytes | str | None"]  # a file's content, where a link leads, or None: the path is not to be there


def series(patches: Path, framework: str) -> Wanted:
    """The series of a framework, for all generations that its tags have, and each tag's links to it. Raises BadSources."""
    known = [tag for tag in tags(patches) if tag.framework == framework]
    first = {tag.generation: tag for tag in reversed(known)}
    wanted: Wanted = {}
    hooks = set()
    for tag in first.values():
        own = read_series(patches, tag)
        parts = _parts(own, new_files(patches, tag))
        for (commit, _), text in zip(parts, _format(parts), strict=True):
            wanted[patches / framework / "series" / commit.file_name] = text
    for tag in known:
        own = read_series(patches, tag)
        hooks.add(patches / framework / tag.name / own.hook.file_name)
        for commit in own.commits:
            wanted[patches / framework / tag.name / commit.file_name] = f"../series/{commit.file_name}"
    left_over = {*(patches / framework).glob("*/*.patch")} - {*wanted} - hooks
    return wanted | dict.fromkeys(left_over)


def hook(patches: Path, tag: Tag, originals: Mapping[str, bytes]) -> Wanted:
    """The hook of `tag`, if it has an edit; `originals` are the edited files as the official wheel has them, by path.

    Raises BadSources when the sources do not fit together.
    """
    for path, blob in tag.blobs.items():
        if git_command.blob_hash(originals[path]) != blob:
            raise BadSources(f"{path} in the base wheel is not upstream's file at {tag.name} (git hash is not {blob})")
    edited = apply_edits(read_edits(patches, tag), originals)
    unused = [path for path, data in originals.items() if edited[path] == data]
    if unused:
        raise BadSources(f"tags.toml lists {unused[0]} for {tag.name}, but no edit changes it")
    own = read_series(patches, tag)
    file = patches / tag.framework / tag.name / own.hook.file_name
    if not edited:
        return {file: None}
    (text,) = _format([(own.hook, edited)], originals, _DATE + len(own.commits))
    return {file: text}


def present(places: Iterable[Path]) -> Wanted:
    """What is at these paths now."""
    found: Wanted = {}
    for path in places:
        found[path] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def stale(wanted: Wanted) -> list[Path]:
    """The paths that are not as wanted. An installed tool has no links, since a wheel carries none, and needs none."""
    return [path for path in _different(wanted) if paths.in_checkout() or not isinstance(wanted[path], str)]


def missing_hooks(patches: Path, frameworks: Iterable[str]) -> list[Tag]:
    """The tags whose hook is not there, or is for other files of upstream's than the catalogue says."""
    known = [tag for tag in tags(patches) if tag.framework in frameworks and tag.blobs]
    return [tag for tag in known if not _starts_from(patches, tag)]


def _starts_from(patches: Path, tag: Tag) -> bool:
    file = patches / tag.framework / tag.name / read_series(patches, tag).hook.file_name
    return file.is_file() and read_patch(file.name, [file]).edited == tag.blobs


def write(wanted: Wanted) -> list[Path]:
    """Makes everything as wanted; returns what was changed. Raises OSError."""
    changed = _different(wanted)
    for path in changed:
        content = wanted[path]
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            replace_file(path, content)
            continue
        path.unlink(missing_ok=True)
        if content is not None:
            path.symlink_to(content)
        elif not any(path.parent.iterdir()):
            path.parent.rmdir()
    return changed


def _different(wanted: Wanted) -> list[Path]:
    found = present(wanted)
    return [path for path, content in wanted.items() if content != found[path]]


def _parts(series_: Series, files: Mapping[str, bytes]) -> list[tuple[Commit, dict[str, bytes]]]:
    """Which files each commit adds."""
    owners = {path: owner(series_.commits, path) for path in sorted(files)}
    parts = [(commit, {path: files[path] for path in owners if owners[path] is commit}) for commit in series_.commits]
    for commit, own in parts:
        if not own:
            raise BadSources(f"the commit {commit.subject!r} in series.toml has no file")
    return parts


def _format(
    commits: Iterable[tuple[Commit, Mapping[str, bytes]]], base: Mapping[str, bytes] | None = None, date: int = _DATE
) -> list[bytes]:
    """One .patch file for each commit, with the files that it writes, on top of the files `base`."""
    texts = []
    with tempfile.TemporaryDirectory(prefix="lmsbuild-series-") as name:
        folder = Path(name)
        _must(folder, "init", "--quiet", "--initial-branch=series")
        _write(folder, base or {})
        _commit(folder, Commit("upstream", "", (), ""), date)
        for commit, files in commits:
            date += 1
            _write(folder, files)
            _commit(folder, commit, date)
            texts.append(
                _must(
                    folder,
                    "format-patch",
                    "--stdout",
                    "--no-numbered",
                    "--full-index",
                    "--zero-commit",
                    "--no-signature",
                    "--no-renames",
                    "--diff-algorithm=histogram",
                    # The least that diff's manual calls enough. Where a tree's lines have moved, git am goes by these lines
                    # alone, and takes the nearest place that has all of them: with two, another function's `return [` and
                    # its first entry will do.
                    "--unified=3",
                    "-1",
                )
            )
    return texts


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _commit(folder: Path, commit: Commit, date: int) -> None:
    extra = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", _AUTHOR), ("EMAIL", _EMAIL), ("DATE", f"{date} +0000"))
    }
    body = commit.body.strip()
    message = f"{commit.subject}\n\n{body}\n" if body else f"{commit.subject}\n"
    _must(folder, "add", "--all", "--force")
    words = ("commit", "--quiet", "--no-verify", "--allow-empty", "--file=-")  # the first one may hold nothing
    _must(folder, *words, extra=extra, stdin=message.encode())


def _must(folder: Path, *arguments: str, extra: Mapping[str, str] | None = None, stdin: bytes = b"") -> bytes:
    finished = git_command.run(folder, *arguments, extra=extra, stdin=stdin)
    if finished.code:
        raise BadSources(f"git {arguments[0]} failed: {finished.error_text.strip()}")
    return finished.output
