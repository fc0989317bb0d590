"""The graft laid over the installed torch, without a wheel and without a change to what is installed.

A folder holds a package `torch` that is made of links to the installed one, except for the few files that the patch
edits or adds and the libraries that it compiles. Put first on PYTHONPATH, it is the torch that a program imports.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import process
from failures import BuildFailed, UnknownRelease
from interpreter import Torch
from runtime import Runtime

from lmsbuild import git, series
from lmsbuild.catalogue import Tag, tags
from lmsbuild.series import Edit, Graft, Library

HERE = Path(__file__).resolve().parent
FRAMEWORK = "pytorch"
_SHOWN = 4000  # characters of a compiler's errors


def find_tag(patches: Path, torch: Torch) -> Tag:
    """The row of tags.toml that the installed torch is of. Raises UnknownRelease with the rows that there are."""
    known = [tag for tag in tags(patches) if tag.framework == FRAMEWORK]
    for tag in known:
        if tag.name == torch.release:
            break
    else:
        names = ", ".join(tag.name for tag in known)
        raise UnknownRelease(
            f"the installed torch is {torch.version}, and the patch is made for {names}: install one of these, or add "
            f"a row for {torch.release} to patches/catalogue/{FRAMEWORK}/tags.toml (see CONTRIBUTING.md)"
        )
    if tag.commit != torch.commit:
        raise UnknownRelease(f"the installed torch {torch.version} is built from {torch.commit}, not from {tag.commit}")
    return tag


def build(torch: Torch, patches: Path, runtime: Runtime, folder: Path) -> tuple[Path, str]:
    """Returns the folder to put on PYTHONPATH, and a digest of the sources: the graft's, and those of these scripts.

    It is kept in `folder` and made again when anything in it changes. Raises UnknownRelease or BuildFailed.
    """
    tag = find_tag(patches, torch)
    files = _patched_files(patches, tag, torch)
    graft = series.read_series(patches, tag).graft
    cxx = compiler()
    key = _digest(files, [repr(tag), repr(graft), str(torch.folder), str(torch.new_strings), repr(runtime), *cxx])
    finished = folder / f"{torch.release}-{key}"
    if not finished.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
            sources, site = Path(name) / "sources", Path(name) / "site"
            _write(sources, files)
            process.say("compiling the graft")
            _compile(graft, [*cxx, *_flags(graft, tag, torch, sources, runtime)], sources, Path(name))
            libraries = [_linked(library, cxx, torch, runtime, Path(name)) for library in graft.libraries]
            site.mkdir()
            _link(torch, site, {path: sources / path for path in files if path.startswith("torch/")}, libraries)
            os.rename(site, finished)
    scripts = {str(path.relative_to(HERE)): path.read_bytes() for path in HERE.rglob("*.py")}
    return finished, _digest(files | scripts, [])


def environment(site: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a program imports that torch."""
    path = os.pathsep.join(filter(None, (str(site), inherited.get("PYTHONPATH"))))
    return {**inherited, "PYTHONPATH": path}


def _patched_files(patches: Path, tag: Tag, torch: Torch) -> dict[str, bytes]:
    """Every file that the patch edits or adds, by its path in the patched tree."""
    edits = series.read_edits(patches, tag)
    originals = {}
    for path, blob in tag.blobs.items():
        try:
            installed = (torch.folder.parent / path).read_bytes()
        except FileNotFoundError:
            raise UnknownRelease(f"{path} of the installed torch is missing: install it again") from None
        # A torch that was patched before is as good: what the edits insert is taken out again.
        found = [data for data in (installed, _without(edits, path, installed)) if git.blob_hash(data) == blob]
        if not found:
            raise UnknownRelease(f"{path} of the installed torch is not upstream's file at {tag.name}: it was edited")
        originals[path] = found[0]
    added = series.new_files(patches, tag)
    return series.apply_edits(edits, originals) | added


def _without(edits: Sequence[Edit], path: str, data: bytes) -> bytes:
    for edit in edits:
        if edit.path == path:
            data = data.replace((edit.before + edit.anchor + edit.after).encode(), edit.anchor.encode())
    return data


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of the usual ones. Raises BuildFailed when there is none."""
    chosen = os.environ.get("CXX", "").split()
    for candidate in [chosen] if chosen else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(candidate[0]):
            return candidate
    looked = " ".join(chosen) or "g++, c++, clang++"
    raise BuildFailed(f"no C++ compiler (looked for {looked}): install g++, or name one in CXX")


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


def _flags(graft: Graft, tag: Tag, torch: Torch, sources: Path, runtime: Runtime) -> list[str]:
    return [
        f"-std={tag.standard}",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_strings)}",
        f"-I{sources / graft.source_root}",
        *(f"-isystem{torch.folder.parent / folder}" for folder in graft.include),
        *(f"-isystem{folder}" for folder in runtime.include),
    ]


def _object(source: str, scratch: Path) -> Path:
    return scratch / f"{Path(source).stem}.o"


def _compile(graft: Graft, words: Sequence[str], sources: Path, scratch: Path) -> None:
    """Compiles the sources of all libraries, side by side."""
    names = [name for library in graft.libraries for name in library.sources]
    _together([[*words, "-c", str(sources / name), "-o", str(_object(name, scratch))] for name in names])


def _linked(library: Library, cxx: Sequence[str], torch: Torch, runtime: Runtime, scratch: Path) -> Path:
    """Links one library in `scratch`, where those that come before it are."""
    target = scratch / Path(library.path).name
    folders = (scratch, torch.folder.parent / Path(library.path).parent)
    link = [*cxx, "-shared", "-pthread", "-o", str(target)]
    link += [str(_object(source, scratch)) for source in library.sources]
    link += [f"-L{folder}" for folder in folders] + [f"-l{name}" for name in library.link]
    link += [str(runtime.library)] if library.cuda else []
    link += ["-ldl", "-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{target.name}", "-Wl,--no-undefined"]
    _together([[*link, "-Wl,--allow-shlib-undefined"]])
    return target


def _together(commands: Sequence[Sequence[str]]) -> None:
    """Runs compilers side by side. Raises BuildFailed with what the first failing one said."""
    running = [subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) for words in commands]
    try:
        for words, started in zip(commands, running, strict=True):
            said = started.communicate()[1].decode(errors="replace")
            if started.returncode:
                raise BuildFailed(f"{words[0]} failed (exit code {started.returncode}):\n{said[:_SHOWN]}")
    finally:
        for started in running:
            process.kill_group(started)


def _link(torch: Torch, site: Path, files: Mapping[str, Path], libraries: Sequence[Path]) -> None:
    """Makes the folder of links; a folder is a real one only where something in it differs from the installed one."""
    installed = torch.folder.parent
    own = {*files, *(f"torch/lib/{library.name}" for library in libraries)}
    real = {str(parent) for name in own for parent in Path(name).parents if str(parent) != "."}
    for folder in sorted(real):
        (site / folder).mkdir()
        if (installed / folder).is_dir():
            for entry in (installed / folder).iterdir():
                name = f"{folder}/{entry.name}"
                if name not in own and name not in real and entry.name != "__pycache__":
                    (site / name).symlink_to(entry)
    for name, source in files.items():
        shutil.copyfile(source, site / name)
    for library in libraries:
        shutil.copyfile(library, site / "torch" / "lib" / library.name)
    # torch's libraries look for others relative to their own place, in the packages beside torch.
    for entry in installed.iterdir():
        if entry.name == "nvidia" or (entry.name != "torch" and any(entry.glob("lib/lib*.so*"))):
            (site / entry.name).symlink_to(entry)
