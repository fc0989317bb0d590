"""Which virtual methods of a class are its own: read off its virtual table, as the compiler made it from the wheel's headers.

A decorator has to override all of them. One that it leaves to a base class compiles, and then answers for the decorator
instead of the decorated object; which methods there are differs by release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import Symbol, SymbolTableSection

from lmsbuild.elf.broken import broken
from lmsbuild.errors import BadSources, UnforwardedMethod

_ORIGINAL = "c10"  # the namespace of the classes that are decorated


def check_decorator(objects: Iterable[Path], decorator: str) -> None:
    """Raises UnforwardedMethod unless the class `decorator`, compiled in one of the objects, overrides everything."""
    for path in objects:
        slots = _slots(path, decorator)
        if not slots:
            continue
        inherited = [names for names in slots if names[0] == _ORIGINAL]
        if inherited:
            methods = ", ".join(sorted({"::".join(names) for names in inherited}))
            raise UnforwardedMethod(
                f"{decorator} does not override {methods}, which this release's headers declare: forward it in "
                f"{path.stem}.cpp, or the base's answer would stand for the decorated allocator's"
            )
        return
    raise BadSources(f"no class {decorator} with virtual methods was compiled, which series.toml calls a decorator")


def _slots(path: Path, decorator: str) -> list[list[str]]:
    """The qualified names of the methods in the virtual table of the class, in an object file."""
    with path.open("rb") as file, broken(path.name, BadSources, "object file"):
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        for table in symbols.iter_symbols():
            if table.name.startswith("_ZTV") and _qualified(table.name[4:])[-1:] == [decorator]:
                return [_qualified(name[2:]) for name in _referenced(elf, symbols, table)]
    return []


def _referenced(elf: ELFFile, symbols: SymbolTableSection, table: Symbol) -> Iterator[str]:
    """The names of the functions that the table refers to."""
    functions = {
        (symbol["st_shndx"], symbol["st_value"]): symbol.name
        for symbol in symbols.iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC"
    }
    begin = table["st_value"]
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection) or section["sh_info"] != table["st_shndx"]:
            continue
        for entry in section.iter_relocations():
            if begin <= entry["r_offset"] < begin + table["st_size"]:
                symbol = symbols.get_symbol(entry["r_info_sym"])
                # What is local to the file is referred to by its place.
                place = (symbol["st_shndx"], symbol["st_value"] + entry["r_addend"])
                name = functions.get(place, "") if symbol["st_info"]["type"] == "STT_SECTION" else symbol.name
                if name.startswith("_ZN"):
                    yield name


def _qualified(mangled: str) -> list[str]:
    """The parts of a nested name, without arguments: "N3c109Allocator8allocateEm" gives c10, Allocator, allocate."""
    names = []
    rest = re.sub(r"^N?K?", "", mangled)
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        names.append(rest[length.end() : end])
        rest = rest[end:]
    if rest.startswith("D"):
        names.append("~")
    return names
