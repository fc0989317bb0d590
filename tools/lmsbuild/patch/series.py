"""What patches/catalogue/<framework>/series.toml says: the commits of the patches, and what the graft builds of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmsbuild.catalogue import generation, statements
from lmsbuild.catalogue.catalogue import Tag, read_toml
from lmsbuild.catalogue.generation import Generation
from lmsbuild.catalogue.statements import Statements
from lmsbuild.errors import BadSources
from lmsbuild.patch.api_modules import Export


@dataclass(frozen=True)
class Commit:
    """One commit of a tag's patches."""

    subject: str
    body: str
    paths: tuple[str, ...]  # files, or folders when they end in "/", as upstream lays them out; the hook has none
    file_name: str  # its .patch file, which generations share that add the same files

    def covers(self, path: str) -> int:
        """How much of `path` the longest of `paths` covers; 0: none does."""
        return max(
            (len(own) for own in self.paths if path == own or (own.endswith("/") and path.startswith(own))), default=0
        )


@dataclass(frozen=True)
class Library:
    """A library that the graft adds."""

    path: str  # in the wheel
    sources: tuple[str, ...]  # in the patched tree
    together: tuple[str, ...]  # those of them that are compiled as one, since they include the same large headers
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
    headers_of: str  # a tag whose wheels have the headers that this one lacks; empty: it lacks none
    headers: Mapping[str, str]  # git's hash of each of those, by its path in that tag's wheels
    lacking: Mapping[str, str]  # what they would be called in this wheel, by the same path

    def member(self, path: str) -> str | None:
        """What a file of the patched tree is called in the wheel; None when it is not in it."""
        fits = [own for own in self.install if path == own or (own.endswith("/") and path.startswith(own))]
        if not fits or path.rpartition("/")[2] in self.left_out:
            return None
        own = max(fits, key=len)
        return self.install[own] + path.removeprefix(own)


@dataclass(frozen=True)
class Series:
    """What the sources of a framework's patch say for one tag."""

    pager_folder: str  # where the pager's files land in the patched tree
    python_folder: str  # and those that the frameworks' Python packages share
    commits: tuple[Commit, ...]  # those that only add files
    hook: Commit  # the one after them, which edits upstream's files
    left_out: tuple[str, ...]  # files that other generations' patches add
    graft: Graft


def read_series(patches: Path, tag: Tag) -> Series:
    """Reads patches/catalogue/<framework>/series.toml, as far as it is for the generation of `tag`. Raises BadSources."""
    table = read_toml(patches / "catalogue" / tag.framework / "series.toml")
    graft = table["graft"]
    own = generation.find(generation.read(table), tag.generation)
    only = generation.read_only(table)
    left_out = tuple(entry.path for entry in only if tag.generation not in entry.generations)
    commits = _commits(table, tag.generation)
    hook = table["hook"]
    return Series(
        pager_folder=table["pager_folder"],
        python_folder=table["python_folder"],
        commits=commits,
        hook=Commit(hook["subject"], hook["body"], (), f"{len(commits) + 1:04}-{hook['name']}.patch"),
        left_out=left_out,
        graft=Graft(
            libraries=tuple(
                Library(
                    path=own.member(row["path"]),
                    sources=tuple(source for source in row["sources"] if source not in left_out),
                    together=tuple(row.get("together", ())),
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
            headers_of=own.headers_of,
            headers=own.headers,
            lacking={path: own.member(path) for path in own.headers},
        ),
    )


def _commits(table: Mapping[str, Any], generation_: str) -> tuple[Commit, ...]:
    """The commits that add files, for one generation. A file's name says the generations where they add different ones."""
    names = [entry.name for entry in generation.read(table)]
    commits = [Commit(row["subject"], row["body"], tuple(row["paths"]), "") for row in table["commit"]]
    only = [(owner(commits, entry.path), entry) for entry in generation.read_only(table)]
    named = []
    for number, commit in enumerate(commits, start=1):
        added = {
            name: [entry.path for own, entry in only if own is commit and name in entry.generations] for name in names
        }
        sharing = [name for name in names if added[name] == added[generation_]]
        variant = "" if len(sharing) == len(names) else "-" + "-".join(sorted(sharing, key=_release))
        subject = re.sub(r"[^A-Za-z0-9.]+", "-", commit.subject)  # as `git format-patch` names its files
        named.append(replace(commit, file_name=f"{number:04}-{subject}{variant}.patch"))
    return tuple(named)


def _release(generation_: str) -> list[int]:
    """By which generations are sorted: "2.2" is older than "2.12"."""
    return [int(number) for number in generation_.split(".")]


def owner(commits: Sequence[Commit], path: str) -> Commit:
    """The commit that a file is in: the one with the longest path that covers it. Raises BadSources."""
    best = max(commits, key=lambda commit: commit.covers(path))
    if not best.covers(path):
        raise BadSources(f"{path} belongs to no commit in series.toml: add it to one")
    return best


def read_generations(patches: Path, framework: str) -> list[Generation]:
    """The generations that patches/catalogue/<framework>/series.toml lists."""
    return generation.read(read_toml(patches / "catalogue" / framework / "series.toml"))


def oldest_python(patches: Path, framework: str) -> int:
    """The x of the oldest Python 3.x that the added files run with."""
    return int(read_toml(patches / "catalogue" / framework / "series.toml")["graft"]["python"])


_KINDS = (".cc", ".cpp", ".h", ".py")
_NAMES = ("BUILD",)


def new_files(patches: Path, tag: Tag) -> dict[str, bytes]:
    """The files that the patches of `tag` add, by path in the patched tree.

    What editors leave behind, hidden files and such as end in "~", stays out. Raises BadSources for a file of another kind.
    """
    series = read_series(patches, tag)
    files = {}
    folders = {"pager": series.pager_folder, "python": series.python_folder, tag.framework: ""}
    for source, target in ((patches / "src" / folder, target) for folder, target in folders.items()):
        for path in sorted(source.rglob("*")):
            own = path.relative_to(source)
            name = os.path.join(target, own.as_posix())
            left_behind = own.name.endswith("~") or any(part.startswith((".", "#")) for part in own.parts)
            if not path.is_file() or left_behind or "__pycache__" in own.parts or name in series.left_out:
                continue
            if own.suffix not in _KINDS and own.name not in _NAMES:
                raise BadSources(f"{path} is no source of a patch: remove it, or add its kind to patch/series.py")
            files[name] = path.read_bytes()
    return files
