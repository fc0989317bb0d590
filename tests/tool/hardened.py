"""What a library lacks of that which keeps a fault in it from becoming an attack."""

from __future__ import annotations

from pathlib import Path

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

_EXECUTABLE, _BIND_NOW, _NOW, _TEXT_RELOCATIONS = 1, 8, 1, 4  # PF_X, DF_BIND_NOW, DF_1_NOW, DF_TEXTREL


def imported(library: Path) -> set[str]:
    """The symbols that the library takes from others."""
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}


def fortified(library: Path) -> set[str]:
    """The checked functions that it calls where it could call ones that write beyond an array."""
    return {name for name in imported(library) if name.endswith("_chk")}


def lacking(library: Path) -> list[str]:
    with library.open("rb") as file:
        segments = list(ELFFile(file).iter_segments())
        kinds = {segment["p_type"]: segment for segment in segments}
        tags = {
            tag.entry.d_tag: tag.entry.d_val
            for segment in segments
            if isinstance(segment, DynamicSegment)
            for tag in segment.iter_tags()
        }
    flags, more = tags.get("DT_FLAGS", 0), tags.get("DT_FLAGS_1", 0)
    stack = kinds.get("PT_GNU_STACK")
    there = {
        "read-only relocations": "PT_GNU_RELRO" in kinds,
        "binding when it is loaded": bool(flags & _BIND_NOW or more & _NOW),
        "a stack that is not executable": stack is not None and not stack["p_flags"] & _EXECUTABLE,
        "code without relocations": "DT_TEXTREL" not in tags and not flags & _TEXT_RELOCATIONS,
        "guards of the stack": "__stack_chk_fail" in imported(library),
    }
    return [name for name, found in there.items() if not found]
