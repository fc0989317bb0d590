"""The pager's test suite as programs for POWER and ARM, emulated, with the pages that such machines have.

Needs cross-compilers and an emulator, which are Debian's packages g++-powerpc64le-linux-gnu, g++-aarch64-linux-gnu and
qemu-user-static. SAMPLE runs in CI, all cases before a release. LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of
the random ones.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cases
import kept
from flavours import PAGER, flags
from machines import MACHINES, Machine

pytestmark = pytest.mark.build
ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests/pager"
STEPS = "1000"
TIMEOUT_S = 300
# Cases that an emulator cannot run, or not in the time of a test.
NOT_EMULATED = {
    "file_store_bounds_memory": "the memory of the emulator is counted, in pages of another size",
    "little_address_space": "the emulator does not apply limits of the address space",
    "more_blocks_than_mappings": "takes minutes, and its blocks of 4 KiB are larger where pages are",
    "nothing_is_kept_where_addresses_are_few": "the emulator does not apply limits of the address space",
    "random_sizes_take_little_more_than_is_in_use": "the memory of the emulator is counted, in pages of another size",
    "two_hundred_forks_memory": "takes minutes",
    "two_hundred_forks_file": "takes minutes",
    "what_leaves_serves_what_comes": "the memory of the emulator is counted",
}


# What runs on each; the last one has what depends on the size of pages.
PROGRAMS = {
    "ppc64le": ("units", "failures", "faults", "forks", "host_pages", "model", "stress", "trace"),
    "aarch64": ("units", "failures", "faults", "forks", "host_pages", "model", "stress", "trace"),
    "aarch64-64k": ("units", "model"),
}
# What only this machine's own code can get wrong: whether a fault is a write, the frames of signals, pages of 64 KiB.
SAMPLE = {
    *(("ppc64le", "faults", case) for case in ("read", "write_to_clean_block", "on_an_alternate_stack", "two_pagers")),
    *(("aarch64", "faults", case) for case in ("read", "write_to_clean_block", "handler_before_may_jump_out")),
    ("ppc64le", "model", "lru_file"),
}


def parameters() -> list[Any]:
    """(machine, program, case) of every case that can be emulated, for pytest."""
    rows = [
        (machine, program, case)
        for machine in MACHINES
        for program in PROGRAMS[machine.name]
        for case in cases.names(SUITE / f"{program}.cc")
        if case not in NOT_EMULATED
    ]
    names = {(machine.name, program, case): (machine, program, case) for machine, program, case in rows}
    assert names.keys() >= SAMPLE
    return [
        pytest.param(*row, id="-".join(name), marks=() if name in SAMPLE else pytest.mark.release)
        for name, row in names.items()
    ]


class Builder:
    """Builds the pager for each compiler and the programs for each machine, once; the compilers share a cache."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.get = cache(self._program)
        self._pager = cache(self._compiled_pager)

    def _program(self, machine: Machine, program: str) -> Path:
        made = self._folder / f"{program}-{machine.name}"
        words: list[str | Path] = [f"-DCHECK_PAGE={machine.page}", "-c", SUITE / f"{program}.cc"]
        parts = [self._compile(machine.compiler, f"{made.name}.o", words), self._pager(machine.compiler)]
        _run([machine.compiler, *flags("plain"), *parts, "-ldl", "-o", made])
        return made

    def _compiled_pager(self, compiler: str) -> Path:
        return self._compile(compiler, f"pager-{compiler}.o", ["-c", PAGER / "all.cc"])

    def _compile(self, compiler: str, name: str, words: list[str | Path]) -> Path:
        own = [*flags("plain"), "-std=c++14", "-O1", f"-I{PAGER}", f"-I{SUITE}"]
        _run([*kept.launcher(), compiler, *own, *words, "-o", self._folder / name])
        return self._folder / name


def _run(words: list[str | Path]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("other-machines"))


@pytest.mark.parametrize(("machine", "program", "case"), parameters())
def test_pager(machine: Machine, program: str, case: str, builder: Builder, tmp_path: Path) -> None:
    machine.require()
    # The cross-compiler's own libraries: what is replaced in them is found as on the machine.
    words = [*machine.words(builder.get(machine, program), Path("/usr", machine.triple)), case]
    cases.run(words, tmp_path, {"LMS_TEST_STEPS": os.environ.get("LMS_TEST_STEPS", STEPS)}, TIMEOUT_S)


def test_the_programs_see_these_pages(tmp_path: Path) -> None:
    """The emulator gives them the pages that it is asked for."""
    source = tmp_path / "page.cc"
    source.write_text(
        '#include <cstdio>\n#include <unistd.h>\nint main() { std::printf("%ld", sysconf(_SC_PAGESIZE)); }\n'
    )
    for machine in MACHINES:
        machine.require()
        subprocess.run([machine.compiler, "-static", source, "-o", tmp_path / "page"], check=True)
        words = machine.words(tmp_path / "page")
        assert int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) == machine.page
