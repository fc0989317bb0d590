"""The graft laid over the installed torch, without a wheel and without a change to what is installed.

A folder holds a package `torch` that is made of links to the installed one, except for the few files that the patch
edits or adds and the libraries that it compiles. Put first on PYTHONPATH, it is the torch that a program imports.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from interpreter import Torch
from process import say
from runtime import Runtime

from lmsbuild import git_command
from lmsbuild.catalogue.catalogue import Tag, tags
from lmsbuild.errors import PatchMismatch, UnknownTag, WrongVersion
from lmsbuild.graft import compilation
from lmsbuild.patch import edits, series
from lmsbuild.patch.edits import Edit
from lmsbuild.patch.series import Graft

HERE = Path(__file__).resolve().parent
FRAMEWORK = "pytorch"


def find_tag(patches: Path, torch: Torch) -> Tag:
    """The row of tags.toml that the installed torch is of. Raises UnknownTag with the rows that there are, or WrongVersion."""
    known = [tag for tag in tags(patches) if tag.framework == FRAMEWORK]
    for tag in known:
        if tag.name == torch.release:
            break
    else:
        names = ", ".join(tag.name for tag in known)
        raise UnknownTag(
            f"the installed torch is {torch.version}, and the patch is made for {names}: install one of these, or add "
            f"a row for {torch.release} to patches/catalogue/{FRAMEWORK}/tags.toml (see CONTRIBUTING.md)"
        )
    if tag.commit != torch.commit:
        raise WrongVersion(f"the installed torch {torch.version} is built from {torch.commit}, not from {tag.commit}")
    return tag


def build(torch: Torch, patches: Path, runtime: Runtime, folder: Path) -> tuple[Path, str]:
    """Returns the folder to put on PYTHONPATH, and a digest of the sources: the graft's, and those of these scripts.

    It is kept in `folder` and made again when anything in it changes. Raises as `find_tag` and lmsbuild's
    compiler do, and PatchMismatch.
    """
    tag = find_tag(patches, torch)
    files = _patched_files(patches, tag, torch)
    graft = series.read_series(patches, tag).graft
    finished = folder / name_of(torch, tag, graft, runtime, files)
    if not finished.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
            sources, site = Path(name) / "sources", Path(name) / "site"
            _write(sources, files)
            say("compiling the graft")
            libraries = _compile(graft, tag, torch, runtime, sources, Path(name))
            site.mkdir()
            _link(torch, site, {path: sources / path for path in files if path.startswith("torch/")}, libraries)
            os.rename(site, finished)
    scripts = {str(path.relative_to(HERE)): path.read_bytes() for path in HERE.rglob("*.py")}
    return finished, _digest(files | scripts, [])


def name_of(torch: Torch, tag: Tag, graft: Graft, runtime: Runtime, files: Mapping[str, bytes]) -> str:
    """The name of the folder of what is made of these, and by this compiler: the same in every process."""
    words = (repr(tag), repr(graft), str(torch.folder), str(torch.new_strings), repr(runtime), *compilation.compiler())
    return f"{torch.release}-{_digest(files, words)}"


def environment(site: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a program imports that torch."""
    path = os.pathsep.join(filter(None, (str(site), inherited.get("PYTHONPATH"))))
    return {**inherited, "PYTHONPATH": path}


def _patched_files(patches: Path, tag: Tag, torch: Torch) -> dict[str, bytes]:
    """Every file that the patch edits or adds, by its path in the patched tree."""
    own = edits.read_edits(patches, tag)
    originals = {}
    for path, blob in tag.blobs.items():
        try:
            installed = (torch.folder.parent / path).read_bytes()
        except FileNotFoundError:
            raise PatchMismatch(f"{path} of the installed torch is missing: install it again") from None
        # A torch that was patched before is as good: what the edits insert is taken out again.
        found = [data for data in (installed, _without(own, path, installed)) if git_command.blob_hash(data) == blob]
        if not found:
            raise PatchMismatch(f"{path} of the installed torch is not upstream's file at {tag.name}: it was edited")
        originals[path] = found[0]
    added = series.new_files(patches, tag)
    return edits.apply_edits(own, originals) | added


def _without(own: Sequence[Edit], path: str, data: bytes) -> bytes:
    for edit in own:
        if edit.path == path:
            data = data.replace((edit.before + edit.anchor + edit.after).encode(), edit.anchor.encode())
    return data


def _digest(files: Mapping[str, bytes], words: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0{len(files[name])}\0".encode() + files[name])
    return digest.hexdigest()[:16]


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _compile(graft: Graft, tag: Tag, torch: Torch, runtime: Runtime, sources: Path, scratch: Path) -> dict[str, Path]:
    """Compiles and links the libraries, as for a wheel; returns their files, by the name that each has in torch."""
    # That decorators forward every method is checked in the tests, against the headers of every release: reading it off
    # an object file takes a package that is not needed otherwise.
    libraries = [replace(library, decorator="") for library in graft.libraries]
    tree = compilation.Tree(sources, torch.folder.parent, runtime, runtime.more_headers, torch.new_strings)
    return compilation.build_libraries(libraries, graft, tag.standard, tree, scratch, lambda done: None)


def _link(torch: Torch, site: Path, files: Mapping[str, Path], libraries: Mapping[str, Path]) -> None:
    """Makes the folder of links; a folder is a real one only where something in it differs from the installed one."""
    installed = torch.folder.parent
    own = {*files, *libraries}
    real = {str(parent) for name in own for parent in Path(name).parents if str(parent) != "."}
    for folder in sorted(real):
        (site / folder).mkdir()
        if (installed / folder).is_dir():
            for entry in (installed / folder).iterdir():
                name = f"{folder}/{entry.name}"
                if name not in own and name not in real and entry.name != "__pycache__":
                    (site / name).symlink_to(entry)
    for name, source in (*files.items(), *libraries.items()):
        shutil.copyfile(source, site / name)
    # torch's libraries look for others relative to their own place, in the packages beside torch.
    for entry in installed.iterdir():
        if entry.name == "nvidia" or (entry.name != "torch" and any(entry.glob("lib/lib*.so*"))):
            (site / entry.name).symlink_to(entry)
