"""Object files that the cache keeps: taken where everything that makes them is the same, and never otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from lmsbuild.graft import objects
from workshop import Workshop

pytestmark = pytest.mark.build  # compiles in every test
OBJECTS = 2  # of the stand-in: the pager, and the glue


def _compiled(workshop: Workshop, **environment: str) -> tuple[int, bytes, str]:
    """How many sources a build compiled, the wheel that it made, and what it said."""
    words = ("pytorch", "v2.13.0", "--base-wheel", workshop.base, "--output", workshop.output, "-v")
    done = workshop.run(*words, environment=environment)
    assert done.returncode == 0, done.stderr
    commands = [words for line in done.stderr.splitlines() if (words := line.split())[:1] == ["+"] and "-c" in words]
    compiled = [words for words in commands if words[-1].endswith(".o") and "'-###'" not in words]
    return len(compiled), Path(done.stdout.strip()).read_bytes(), done.stderr


def _entries(workshop: Workshop) -> list[Path]:
    return sorted((workshop.cache / "objects").iterdir())


def test_a_second_build_compiles_nothing_and_makes_the_same_bytes(workshop: Workshop) -> None:
    first, wheel, _ = _compiled(workshop)
    again, same, _ = _compiled(workshop)
    assert (first, again) == (OBJECTS, 0)
    assert same == wheel


def test_a_source_that_changes_is_compiled(workshop: Workshop) -> None:
    _compiled(workshop)
    header = next((workshop.patches / "src").rglob("*.h"))
    header.write_text(header.read_text() + "inline int lms_more() { return 1; }\n")
    workshop.generate()
    assert _compiled(workshop)[0] > 0


@pytest.mark.parametrize(
    "changed", ["a flag", "its program", "what its program starts", "an included header of the system"]
)
def test_another_compiler_compiles(workshop: Workshop, changed: str, tmp_path: Path) -> None:
    compiler, inner, header = tmp_path / "compiler", tmp_path / "inner", tmp_path / "include" / "string"
    header.parent.mkdir()
    header.write_text("#include_next <string>\n")
    compiler.write_text(f'#!/bin/sh\nexec {inner} "$@"\n')
    inner.write_text(f'#!/bin/sh\nexec g++ -isystem {header.parent} "$@"\n')
    for script in (compiler, inner):
        script.chmod(0o755)
    assert _compiled(workshop, CXX=str(compiler))[0] == OBJECTS
    assert _compiled(workshop, CXX=str(compiler))[0] == 0
    words = str(compiler)
    if changed == "a flag":
        words += " -fno-plt"
    elif changed == "its program":
        compiler.write_text(compiler.read_text() + "# newer\n")
    elif changed == "what its program starts":
        inner.write_text(inner.read_text().replace('"$@"', '-fno-plt "$@"'))
    else:
        header.write_text("#include_next <string>\nnamespace newer { inline int release() { return 2; } }\n")
    assert _compiled(workshop, CXX=words)[0] > 0


@pytest.mark.parametrize("damage", ["a bit", "its end", "empty", "a pipe", "another's"])
def test_a_damaged_entry_is_never_used(workshop: Workshop, damage: str) -> None:
    _, wheel, _ = _compiled(workshop)
    entries = _entries(workshop)
    others = [entry.read_bytes() for entry in reversed(entries)]
    for entry, other in zip(entries, others, strict=True):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "a pipe":
            entry.unlink()
            os.mkfifo(entry)
        else:
            entry.write_bytes({"a bit": data, "its end": data[:-1], "empty": b"", "another's": other}[damage])
    compiled, same, said = _compiled(workshop)
    assert (compiled, same) == (OBJECTS, wheel)
    assert damage == "a pipe" or "is damaged; compiling it again" in said


def test_a_cache_that_cannot_keep_objects_stops_no_build(workshop: Workshop) -> None:
    workshop.cache.mkdir()
    (workshop.cache / "objects").write_text("in the way")
    compiled, _, said = _compiled(workshop)
    assert compiled == OBJECTS
    assert "the object is not kept for the next build: " in said


def test_those_that_were_not_used_for_longest_go(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_MOST", 3)
    folder = workshop.folder / "kept"
    for number in range(5):
        objects._store(folder / str(number), b"object")  # sealed under that name
        os.utime(folder / str(number), (number, number))
    assert objects._load(folder / "2") == b"object"  # so it was used lately
    objects._store(folder / "5", b"object")
    assert {path.name for path in folder.iterdir()} == {"2", "4", "5"}


def test_a_launcher_before_the_compiler_works(workshop: Workshop, tmp_path: Path) -> None:
    """As ccache is used: CXX="ccache g++"."""
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\nexec "$@"\n')
    launcher.chmod(0o755)
    assert _compiled(workshop, CXX=f"{launcher} g++")[0] == OBJECTS
    assert _compiled(workshop, CXX=f"{launcher} g++")[0] == 0


def test_the_identity_of_a_compiler_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []
    run = objects.command.run

    def note(arguments: list[str], **options: Mapping[str, str]) -> objects.command.Finished:
        ran.append(arguments)
        return run(arguments, **options)

    monkeypatch.setattr(objects.command, "run", note)
    objects.identity.cache_clear()
    assert objects.identity(("g++",)) == objects.identity(("g++",)) != objects.identity(("g++", "-O1"))
    assert len(ran) == 2 * (2 + len(objects._PARTS))
