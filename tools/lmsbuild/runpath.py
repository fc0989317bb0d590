"""Where an ELF file looks for its libraries (DT_RUNPATH, or the older DT_RPATH), read and written.

The new text is written over the old one, which must be at least as long: nothing in the file moves, so no other program
is needed to edit it, whatever machine it is for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import StringTableSection, SymbolTableSection

from lmsbuild.errors import DamagedWheel

MAGIC = b"\x7fELF"
_STRINGS = ("DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH")


@dataclass(frozen=True)
class Elf:
    """What a file tells the loader."""

    machine: str  # as ELF calls it, such as EM_X86_64
    little_endian: bool
    runpath: tuple[str, ...]
    offset: int  # of the text in the file; 0 without one


def read(stream: IO[bytes], name: str) -> Elf | None:
    """None when the file is no ELF file. Raises DamagedWheel when it is a broken one."""
    stream.seek(0)
    if stream.read(len(MAGIC)) != MAGIC:
        return None
    try:
        elf = ELFFile(stream)
        texts, offset = [], 0
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                table = elf.get_section(section["sh_link"])
                assert isinstance(table, StringTableSection)
                for tag in section.iter_tags():
                    if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                        texts = [text for text in table.get_string(tag.entry.d_val).split(":") if text]
                        offset = table["sh_offset"] + tag.entry.d_val
        return Elf(elf["e_machine"], elf.little_endian, tuple(texts), offset)
    except (ELFError, KeyError, AssertionError) as error:
        raise DamagedWheel(f"{name} is a broken ELF file: {error}") from error


def write(path: Path, entries: tuple[str, ...]) -> None:
    """Sets where the file at `path` looks for libraries. Raises DamagedWheel when it does not fit in its place."""
    with path.open("r+b") as stream:
        known = read(stream, path.name)
        old, new = ":".join(known.runpath) if known else "", ":".join(entries)
        if known is None or not known.offset or len(new) > len(old):
            raise DamagedWheel(f"{path.name} has no room for the library path {new!r}")
        if _is_shared(stream, known.offset, len(old)):
            raise DamagedWheel(f"{path.name} uses a part of its library path as another name, so it cannot be changed")
        stream.seek(known.offset)
        stream.write(new.encode().ljust(len(old), b"\0"))


def _is_shared(stream: IO[bytes], offset: int, length: int) -> bool:
    """Whether another name begins within the text: linkers let a name be the end of a longer one."""
    elf = ELFFile(stream)
    starts: set[int] = set()
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            table = elf.get_section(section["sh_link"])
            assert isinstance(table, StringTableSection)
            begin = offset - table["sh_offset"]
            starts |= {tag.entry.d_val for tag in section.iter_tags() if tag.entry.d_tag in _STRINGS}
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            # An entry begins with its name's offset, four bytes in both classes of ELF.
            data, width = section.data(), section["sh_entsize"]
            form = struct.Struct(f"{'<' if elf.little_endian else '>'}I{width - 4}x")
            starts |= {name for (name,) in form.iter_unpack(data)}
    return any(begin < start < begin + length for start in starts)
