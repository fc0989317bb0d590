"""Object files, kept in the cache under the hash of what makes them: the preprocessed source, the flags, and the compiler.

The preprocessed source holds every header that it includes, those of the system too. Each file begins with a hash of its name and
the object that follows, so that an entry which is damaged, or another's, is never used. Thread-safe; several runs may share the folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lmsbuild import command, report
from lmsbuild.published.regular_file import open_file

_MOST = 256  # objects; PyTorch's CPU wheel takes two of some MB
_LARGEST = 1 << 28  # bytes of an entry
_HASH = hashlib.sha256().digest_size
# Parts of a compiler that its own file is not; clang has them built in.
_PARTS = ("cc1plus", "as")


def compile_source(
    compiler: Sequence[str],
    flags: Sequence[str],
    source: Path,
    target: Path,
    kept: Path | None,
    environment: Mapping[str, str],
) -> command.Finished:
    """Compiles `source` to `target`, or takes what an earlier run made of the same; runs in the folder of `target`.

    `kept` is the folder with the objects; None: none are kept. Returns how the compiler ended. Raises MissingProgram.
    """
    folder = target.parent
    run = functools.partial(command.run, folder=folder, environment=environment)
    entry = None
    if kept is not None:
        preprocessed = target.with_suffix(".ii")
        finished = run([*compiler, *flags, "-E", source, "-o", preprocessed.name])
        if finished.code:
            return finished
        entry = kept / _key(compiler, flags, preprocessed)
        preprocessed.unlink(missing_ok=True)
        if (found := _load(entry)) is not None:
            target.write_bytes(found)
            return finished
    finished = run([*compiler, *flags, "-c", source, "-o", target.name])
    if finished.code == 0 and entry is not None and target.is_file():
        _store(entry, target.read_bytes())
    return finished


def _key(compiler: Sequence[str], flags: Sequence[str], preprocessed: Path) -> str:
    digest = hashlib.sha256()
    for text in (identity(tuple(compiler)), *flags):
        digest.update(f"{text}\0".encode())
    if preprocessed.is_file():  # a compiler that is none may end well without it; then it makes no object either
        with preprocessed.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


@functools.cache
def identity(compiler: tuple[str, ...]) -> str:
    """Tells the compiler from every other: its command, what it says of itself, what it would run, and the hashes of its programs."""
    digest = hashlib.sha256("\0".join(compiler).encode())
    # Scripts and specifications may add options to what is run. With -pipe no temporary file has a name.
    would_run = ("-###", "-pipe", "-O2", "-c", "-x", "c++", os.devnull)
    for words in (("-v",), would_run):
        said = command.run([*compiler, *words])
        digest.update(f"{said.text}\0{said.error_text}\0".encode())
    programs = [command.run([*compiler, f"-print-prog-name={name}"]).text.strip() for name in _PARTS]
    for name in (*compiler, *programs):
        if found := shutil.which(name):
            digest.update(Path(found).read_bytes())
    return digest.hexdigest()


def _seal(key: str, data: bytes) -> bytes:
    """What an entry begins with: so one that lies under another's name is not taken for it."""
    return hashlib.sha256(f"{key}\0".encode() + data).digest()


def _load(entry: Path) -> bytes | None:
    try:
        with open_file(entry) as file:
            data = file.read(_LARGEST + 1)
        if len(data) <= _LARGEST and _seal(entry.name, data[_HASH:]) == data[:_HASH]:
            with suppress(OSError):  # of a cache that cannot be written to
                os.utime(entry)  # lately used
            return data[_HASH:]
        report.note(f"{entry.name} in the cache is damaged; compiling it again")
    except OSError:
        pass
    return None


def _store(entry: Path, data: bytes) -> None:
    """Keeps an object, and removes those that were not used for longest. A cache that cannot be written to keeps nothing."""
    from lmsbuild.catalogue.rows import (
        replace_file,
    )  # here, since ci/gpu, which keeps none, has not the packages that this takes

    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        replace_file(entry, _seal(entry.name, data) + data)
    except OSError as error:
        report.note(f"the object is not kept for the next build: {entry}: {error.strerror}")
        return
    with suppress(OSError):
        newest = sorted(entry.parent.iterdir(), key=lambda path: -path.stat().st_mtime)
        for path in newest[_MOST:]:
            path.unlink(missing_ok=True)
