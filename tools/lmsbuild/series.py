"""Makes a .patch file from its sources: the pager, the framework's new files, and the edits of existing ones.

The result depends on those sources and on the edited files of the official wheel alone, never on who generates it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import generation, git, statements
from lmsbuild.api_modules import Export
from lmsbuild.catalogue import Tag, read_toml
from lmsbuild.errors import BadSources
from lmsbuild.generation import Generation
from lmsbuild.statements import Statements

_AUTHOR = "Large Model Support"
_EMAIL = "lms@users.noreply.github.com"
_OUTSIDE = re.compile(r"^[^\s#)]", re.MULTILINE)  # begins the line after a block
_DATE = 1767225600  # 2026-01-01, seconds; each commit is one second later than the one before


@dataclass(frozen=True)
class Commit:
    """One commit of the series."""

    subject: str
    body: str
    paths: tuple[str, ...]  # files, or folders when they end in "/", as upstream lays them out


@dataclass(frozen=True)
class Library:
    """A library that the graft adds."""

    path: str  # in the wheel
    sources: tuple[str, ...]  # in the patched tree
    link: tuple[str, ...]  # libraries, of the wheel or built before, that it links against, as -l takes them
    requires: str  # a file of the wheel without which this library is left out; empty: none
    cuda: bool  # whether it takes CUDA's runtime
    decorator: str  # a class in it that has to override every virtual method of its bases; empty: none
    cuda_sources: tuple[str, ...]  # more of them, for CUDA wheels
    cuda_define: tuple[str, ...]  # macros that those are compiled with, as -D takes them

    @property
    def links_with(self) -> list[str]:
        """The files that it links against, which are beside it."""
        return [name[1:] if name.startswith(":") else f"lib{name}.so" for name in self.link]


@dataclass(frozen=True)
class Graft:
    """What the graft compiles and puts into the wheel."""

    libraries: tuple[Library, ...]  # in the order in which they are linked
    source_root: str  # folder of the patched tree that its own #include lines start from
    include: tuple[str, ...]  # folders of headers in the wheel
    define: tuple[str, ...]  # macros that these need, as -D takes them
    abi_library: str  # a small library in the wheel that shows which C++ strings all of them use
    cuda_library: str  # a library that only CUDA wheels have; empty: all have the same
    states: Statements  # what the wheel says of itself
    standard: str  # the C++ standard that the headers need; empty: the wheel states it
    install: Mapping[
        str, str
    ]  # files, and folders that end in "/", of the patched tree that are in the wheel, and where
    left_out: tuple[str, ...]  # names of files that are in such folders, but not in the wheel
    version_file: str  # a file of the wheel that has to say the new version; empty: none
    exports: tuple[Export, ...]  # names that generated modules of the wheel get
    messages: tuple[str, ...]  # generated modules of protocol buffers that get the field
    label: str  # local version label of the patched wheel

    def member(self, path: str) -> str | None:
        """What a file of the patched tree is called in the wheel; None when it is not in it."""
        fits = [own for own in self.install if path == own or (own.endswith("/") and path.startswith(own))]
        if not fits or path.rpartition("/")[2] in self.left_out:
            return None
        own = max(fits, key=len)
        return self.install[own] + path.removeprefix(own)


@dataclass(frozen=True)
class Edit:
    """Text that is inserted into one existing file, beside an anchor that occurs exactly once."""

    path: str
    within: str  # the line that opens the block which the anchor is in; empty: anywhere
    anchor: str  # whole lines
    before: str  # inserted before the anchor
    after: str  # inserted after the anchor
    since: str  # the first tag it is for; empty: no bound
    until: str  # the last one; empty: no bound


@dataclass(frozen=True)
class Series:
    """What the sources of a framework's patch say for one tag."""

    pager_folder: str  # where the pager's files land in the patched tree
    python_folder: str  # and those that the frameworks' Python packages share
    commits: tuple[Commit, ...]
    left_out: tuple[str, ...]  # files that other generations' patches add
    graft: Graft


def read_series(patches: Path, tag: Tag) -> Series:
    """Reads patches/catalogue/<framework>/series.toml, as far as it is for the generation of `tag`. Raises BadSources."""
    table = read_toml(patches / "catalogue" / tag.framework / "series.toml")
    graft = table["graft"]
    own = generation.find(generation.read(table), tag.generation)
    left_out = tuple(only.path for only in generation.read_only(table) if tag.generation not in only.generations)
    return Series(
        pager_folder=table["pager_folder"],
        python_folder=table["python_folder"],
        commits=tuple(Commit(row["subject"], row["body"], tuple(row["paths"])) for row in table["commit"]),
        left_out=left_out,
        graft=Graft(
            libraries=tuple(
                Library(
                    path=own.member(row["path"]),
                    sources=tuple(source for source in row["sources"] if source not in left_out),
                    link=tuple(name for library in row["link"] for name in own.link.get(library, (library,))),
                    requires=own.member(row.get("requires", "")),
                    cuda=row.get("cuda", False),
                    decorator=row.get("decorator", ""),
                    cuda_sources=tuple(source for source in row.get("cuda_sources", ()) if source not in left_out),
                    cuda_define=tuple(row.get("cuda_define", ())),
                )
                for row in graft["library"]
            ),
            source_root=graft["source_root"],
            include=tuple(own.member(folder) for folder in graft["include"]),
            define=own.define,
            abi_library=own.member(graft["abi_library"]),
            cuda_library=own.member(graft.get("cuda_library", "")),
            states=statements.read(table, own),
            standard=own.standard,
            install={path: own.member(name) for path, name in graft["install"].items()},
            left_out=tuple(graft.get("left_out", ())),
            version_file=own.member(graft.get("version_file", "")),
            exports=tuple(
                Export(tuple(own.member(file) for file in row["modules"]), row["source"], tuple(row["names"]))
                for row in graft.get("export", ())
            ),
            messages=tuple(own.member(file) for file in graft.get("messages", ())),
            label=graft["label"],
        ),
    )


def read_generations(patches: Path, framework: str) -> list[Generation]:
    """The generations that patches/catalogue/<framework>/series.toml lists."""
    return generation.read(read_toml(patches / "catalogue" / framework / "series.toml"))


def oldest_python(patches: Path, framework: str) -> int:
    """The x of the oldest Python 3.x that the added files run with."""
    return int(read_toml(patches / "catalogue" / framework / "series.toml")["graft"]["python"])


def read_edits(patches: Path, tag: Tag) -> list[Edit]:
    """Reads the edits that are for `tag` from patches/catalogue/<framework>/edits.toml."""
    edits = []
    for row in read_toml(patches / "catalogue" / tag.framework / "edits.toml")["edit"]:
        edit = Edit(
            path=row["path"],
            within=row.get("within", ""),
            anchor=row["anchor"],
            before=row.get("before", ""),
            after=row.get("after", ""),
            since=row.get("since", ""),
            until=row.get("until", ""),
        )
        if tag.is_within(edit.since, edit.until):
            edits.append(edit)
    return edits


def apply_edits(edits: list[Edit], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the edited files. Raises BadSources when an anchor does not occur exactly once in its block."""
    edited = dict(files)
    for edit in edits:
        for text in (edit.within, edit.anchor, edit.before, edit.after):
            if text and not text.endswith("\n"):
                raise BadSources(f"an edit of {edit.path} has a text that is not whole lines: {text!r}")
        if edit.path not in edited:
            raise BadSources(f"an edit is for {edit.path}, which tags.toml does not list for this tag")
        content = edited[edit.path].decode()
        begin, end = 0, len(content)
        if edit.within:
            _, begin = _only(edit.path, content, edit.within, 0, end)
            following = _OUTSIDE.search(content, begin)
            end = following.start() if following else end
        first, last = _only(edit.path, content, edit.anchor, begin, end)
        changed = content[:first] + edit.before + edit.anchor + edit.after + content[last:]
        edited[edit.path] = changed.encode()
    return edited


def _only(path: str, content: str, lines: str, begin: int, end: int) -> tuple[int, int]:
    """Where these whole lines are between `begin` and `end`. Raises BadSources when they are not there exactly once."""
    found = [match.start() for match in re.finditer(f"(?m)^(?={re.escape(lines)})", content)]  # overlapping ones too
    inside = [start for start in found if begin <= start and start + len(lines) <= end]
    if len(inside) != 1:
        first = lines.splitlines()[0].strip()
        raise BadSources(f"the anchor of an edit of {path} occurs {len(inside)} times, not once: {first!r}")
    return inside[0], inside[0] + len(lines)


def new_files(patches: Path, tag: Tag) -> dict[str, bytes]:
    """The files that the patch of `tag` adds, by path in the patched tree."""
    series = read_series(patches, tag)
    files = {}
    folders = {"pager": series.pager_folder, "python": series.python_folder, tag.framework: ""}
    for source, target in ((patches / "src" / folder, target) for folder, target in folders.items()):
        for path in sorted(source.rglob("*")):
            name = os.path.join(target, path.relative_to(source).as_posix())
            if path.is_file() and "__pycache__" not in path.parts and name not in series.left_out:
                files[name] = path.read_bytes()
    return files


def generate(patches: Path, tag: Tag, originals: Mapping[str, bytes]) -> bytes:
    """Returns the .patch file of `tag`; `originals` are the edited files as the official wheel has them, by path.

    Raises BadSources when the sources do not fit together.
    """
    for path, blob in tag.blobs.items():
        if git.blob_hash(originals[path]) != blob:
            raise BadSources(f"{path} in the base wheel is not upstream's file at {tag.name} (git hash is not {blob})")
    series = read_series(patches, tag)
    edited = apply_edits(read_edits(patches, tag), originals)
    unused = [path for path, data in originals.items() if edited[path] == data]
    if unused:
        raise BadSources(f"tags.toml lists {unused[0]} for {tag.name}, but no edit changes it")
    files = edited | new_files(patches, tag)
    parts = _parts(series, files)
    with tempfile.TemporaryDirectory(prefix="lmsbuild-series-") as name:
        folder = Path(name)
        _must(folder, "init", "--quiet", "--initial-branch=series")
        _write(folder, originals)
        _commit(folder, f"{tag.framework} {tag.name}", "", _DATE)
        for index, (commit, paths) in enumerate(parts, start=1):
            _write(folder, {path: files[path] for path in paths})
            _commit(folder, commit.subject, commit.body, _DATE + index)
        return _must(
            folder,
            "format-patch",
            "--stdout",
            "--full-index",
            "--zero-commit",
            "--no-signature",
            "--no-renames",
            "--diff-algorithm=histogram",
            # The least that diff's manual calls enough. Where a tree's lines have moved, git am goes by these lines
            # alone, and takes the nearest place that has all of them: with two, another function's `return [` and its
            # first entry will do.
            "--unified=3",
            f"-{len(parts)}",
        )


def _parts(series: Series, files: Mapping[str, bytes]) -> list[tuple[Commit, list[str]]]:
    """Which files each commit holds: a file goes to the commit with the longest path that covers it."""
    parts: list[tuple[Commit, list[str]]] = [(commit, []) for commit in series.commits]
    for path in sorted(files):
        fits = {
            len(own): paths
            for commit, paths in parts
            for own in commit.paths
            if path == own or (own.endswith("/") and path.startswith(own))
        }
        if not fits:
            raise BadSources(f"{path} belongs to no commit in series.toml: add it to one")
        fits[max(fits)].append(path)
    for commit, paths in parts:
        if not paths:
            raise BadSources(f"the commit {commit.subject!r} in series.toml has no file")
    return parts


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _commit(folder: Path, subject: str, body: str, date: int) -> None:
    extra = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", _AUTHOR), ("EMAIL", _EMAIL), ("DATE", f"{date} +0000"))
    }
    message = f"{subject}\n\n{body.strip()}\n" if body.strip() else f"{subject}\n"
    _must(folder, "add", "--all", "--force")
    words = ("commit", "--quiet", "--no-verify", "--allow-empty", "--file=-")  # the first one holds what is edited
    _must(folder, *words, extra=extra, stdin=message.encode())


def _must(folder: Path, *arguments: str, extra: Mapping[str, str] | None = None, stdin: bytes = b"") -> bytes:
    finished = git.run(folder, *arguments, extra=extra, stdin=stdin)
    if finished.code:
        raise BadSources(f"git {arguments[0]} failed: {finished.error_text.strip()}")
    return finished.output
