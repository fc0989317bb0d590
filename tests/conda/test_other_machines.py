"""The pager's test suite as programs for POWER and ARM, emulated, with the pages that such machines have.

Needs cross-compilers and an emulator, which are Debian's packages g++-powerpc64le-linux-gnu, g++-aarch64-linux-gnu and
qemu-user-static. LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones, LMS_TEST_FULL=1 runs all
programs on ARM.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import presets
from machines import MACHINES, Machine
from presets import PAGER
from samples import FULL

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests/pager"
CASE = re.compile(r"^CASE(?:_WITHOUT_SANITIZER)?\((\w+)\) \{", re.MULTILINE)
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
    "aarch64": ("units", "faults", "stress", *(("failures", "forks", "host_pages", "model", "trace") if FULL else ())),
    "aarch64-64k": ("units", "model"),
}


def cases() -> list[tuple[Machine, str, str]]:
    return [
        (machine, program, case)
        for machine in MACHINES
        for program in PROGRAMS[machine.name]
        for case in CASE.findall((SUITE / f"{program}.cc").read_text())
        if case not in NOT_EMULATED
    ]


class Builder:
    """Builds every program for every machine, two at a time, while the first ones run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(2)
        compilers = dict.fromkeys(machine.compiler for machine in MACHINES if shutil.which(machine.compiler))
        self._pagers = {compiler: self._pool.submit(self._pager, compiler) for compiler in compilers}
        self._programs: dict[tuple[str, str], Future[Path]] = {}
        for machine in MACHINES:
            if machine.compiler in compilers:
                for program in PROGRAMS[machine.name]:
                    self._programs[machine.name, program] = self._pool.submit(self._program, machine, program)

    def get(self, machine: Machine, program: str) -> Path:
        return self._programs[machine.name, program].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _pager(self, compiler: str) -> Path:
        return self._compile(compiler, f"pager-{compiler}.o", ["-c", PAGER / "all.cc"])

    def _program(self, machine: Machine, program: str) -> Path:
        words = [
            f"-DCHECK_PAGE={machine.page}",
            SUITE / f"{program}.cc",
            self._pagers[machine.compiler].result(),
        ]
        return self._compile(machine.compiler, f"{program}-{machine.name}", [*words, "-ldl"])

    def _compile(self, compiler: str, name: str, words: list[str | Path]) -> Path:
        output = self._folder / name
        flags = [*presets.flags("plain"), "-std=c++14", "-O1", f"-I{PAGER}", f"-I{SUITE}"]
        done = subprocess.run([compiler, *flags, *words, "-o", output], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return output


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("other-machines"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("machine", "program", "case"), [pytest.param(*row, id=f"{row[0].name}-{row[1]}-{row[2]}") for row in cases()]
)
def test_pager(machine: Machine, program: str, case: str, builder: Builder, tmp_path: Path) -> None:
    machine.require()
    # The cross-compiler's own libraries: what is replaced in them is found as on the machine.
    words = [*machine.words(builder.get(machine, program), Path("/usr", machine.triple)), case]
    environment = {"LMS_TEST_STEPS": STEPS, **os.environ, "LMS_TEST_DIRECTORY": str(tmp_path)}
    done = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


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
