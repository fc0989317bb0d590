"""The compiler's flags that keep a fault in the library from becoming an attack: that they have their effect, and cost nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import machines
import synthetic
from hardened import fortified, lacking
from lmsbuild.elf import symbols
from lmsbuild.graft import compilation, graft
from lmsbuild.wheel.wheel import WheelFile
from workshop import Workshop

pytestmark = pytest.mark.build  # starts the compiler for every kind of attack

# Writes into arrays of known size: what the flags are for.
SOURCE = """#include <cstring>
extern "C" __attribute__((visibility("default"))) int lms_torch_copy(const char* text, unsigned size) {
  char own[16];
  std::memcpy(own, text, size);
  return own[size / 2];
}
"""
COMPILERS = {"": "g++", **{machine.name: machine.compiler for machine in (machines.POWER, machines.ARM)}}


def build(compiler: str, folder: Path, *flags: str) -> Path:
    """The library, as the graft compiles it but for these flags."""
    source, library = folder / "copy.cc", folder / "libcopy.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", *flags, source, "-o", library], check=True)
    return library


@pytest.mark.parametrize("name", COMPILERS)
def test_flags_have_their_effect(name: str, tmp_path: Path) -> None:
    """On every machine, with symbols that any C library has for which there are wheels."""
    compiler = COMPILERS[name]
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}: install Debian's g++ for that machine")
    flags = compilation.hardening((compiler,))
    assert set(compilation.HARDENING[""]) <= set(flags)
    assert set(flags) - set(compilation.HARDENING[""]) == set(compilation.HARDENING.get(name or _own(), ()))
    library = build(compiler, tmp_path, *flags, *compilation.LINKER_HARDENING)
    assert lacking(library) == []
    assert fortified(library) == {"__memcpy_chk"}
    need = symbols.oldest_glibc(symbols.needed_versions(library), name or _own())
    assert need.minor is not None and need.minor <= 17  # of manylinux2014, which is the oldest for POWER and ARM


def _own() -> str:
    done = subprocess.run(["g++", "-dumpmachine"], capture_output=True, text=True, check=True)
    return done.stdout.partition("-")[0]


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        (["-Wl,-z,norelro"], "read-only relocations"),
        (["-Wl,-z,lazy"], "binding when it is loaded"),
        (["-Wl,-z,execstack"], "a stack that is not executable"),
        (["-fno-stack-protector"], "guards of the stack"),
    ],
)
def test_a_library_without_one_of_them_is_found(flags: list[str], missing: str, tmp_path: Path) -> None:
    own = (*compilation.hardening(("g++",)), *compilation.LINKER_HARDENING)
    assert lacking(build("g++", tmp_path, *own, *flags)) == [missing]


def test_text_relocations_are_refused_and_found(tmp_path: Path) -> None:
    """Code whose addresses the loader would have to write, which takes pages that can be written and run."""
    source = tmp_path / "code.s"
    source.write_text('.globl f\nf: .8byte f\n.section .note.GNU-stack,"",@progbits\n')
    words = ["g++", "-shared", source, "-o", tmp_path / "libcode.so"]
    assert subprocess.run([*words, *compilation.LINKER_HARDENING], capture_output=True, check=False).returncode
    subprocess.run([*words, "-Wl,-z,notext"], capture_output=True, check=True)
    assert "code without relocations" in lacking(tmp_path / "libcode.so")


def test_no_fortification_is_found(tmp_path: Path) -> None:
    assert not fortified(build("g++", tmp_path))


def test_a_compiler_without_a_flag_builds_with_the_others(tmp_path: Path) -> None:
    compiler = tmp_path / "older-g++"
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -fstack-clash-protection "*) exit 1;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    flags = compilation.hardening((str(compiler),))
    assert flags == tuple(flag for flag in compilation.hardening(("g++",)) if flag != "-fstack-clash-protection")


def test_no_flag_slows_the_library_down() -> None:
    """Assertions of the C++ library would, in containers on hot paths."""
    assert not [
        flag for flags in compilation.HARDENING.values() for flag in flags if "ASSERT" in flag or "DEBUG" in flag
    ]


def test_the_library_of_a_graft(workshop: Workshop) -> None:
    """It keeps the wheel's platform."""
    source = workshop.patches / "src/pytorch/aten/src/ATen/LmsTorch.cpp"
    source.write_text(f"{source.read_text()}{SOURCE}")
    workshop.generate()
    with WheelFile(graft.build(workshop.options())) as wheel:
        assert wheel.name.platforms == [synthetic.PLATFORM]
        library = workshop.folder / "libtorch_lms.so"
        library.write_bytes(wheel.read("torch/lib/libtorch_lms.so"))
    assert lacking(library) == []
    assert fortified(library) == {"__memcpy_chk"}
