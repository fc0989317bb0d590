"""Machines of other kinds, as this one emulates them, and libraries for them out of Debian's packages.

Needs Debian's packages qemu-user-static and the cross-compilers; `require` skips a test without them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmsbuild.fetch import apt

SUITE = "bookworm"  # whose C library is no newer than that of the cross-compilers
RUNTIME = (
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libgomp.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
)
LARGEST_PAGE = 64 << 10


@dataclass(frozen=True)
class Machine:
    """A kind of machine, with the pages of those in use."""

    name: str
    triple: str  # as compilers call it
    emulator: str
    debian: str  # as Debian calls it
    loader: str  # of programs, below /
    page: int  # bytes

    @property
    def compiler(self) -> str:
        return f"{self.triple}-g++"

    def require(self) -> None:
        """Skips the test where programs for this machine cannot be built and run."""
        for needed in (self.compiler, self.emulator):
            if not shutil.which(needed):
                pytest.skip(f"needs {needed}: install Debian's g++-{self.triple} and qemu-user-static")

    def words(self, program: Path, root: Path | None = None) -> list[str]:
        """The command that runs a program here; `root` has its libraries, when it is not linked statically."""
        words = [self.emulator, "-p", str(self.page)]
        if root is not None:
            words += ["-L", str(root), "-E", f"LD_LIBRARY_PATH={root / 'lib'}"]
        return [*words, str(program)]

    def run(self, program: Path, arguments: Sequence[str], root: Path, variables: Mapping[str, str]) -> tuple[str, int]:
        """What a program prints when it succeeds, and the bytes of memory that it and the emulator took at most."""
        command = [*self.words(program, root), *arguments]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SIM_", "LMS_"))}
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(command, env={**own, **variables}, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            printed = output.read()
        assert process.returncode == 0, f"{command}, {dict(variables)}: {process.returncode}\n{printed[-4000:]}"
        return printed, usage.ru_maxrss << 10


def _power(name: str, page: int) -> Machine:
    return Machine(name, "powerpc64le-linux-gnu", "qemu-ppc64le-static", "ppc64el", "lib64/ld64.so.2", page)


def _arm(name: str, page: int) -> Machine:
    return Machine(name, "aarch64-linux-gnu", "qemu-aarch64-static", "arm64", "lib/ld-linux-aarch64.so.1", page)


POWER = _power("ppc64le", 65536)
ARM = _arm("aarch64", 4096)
ARM_LARGE_PAGES = _arm("aarch64-64k", 65536)
MACHINES = (POWER, ARM, ARM_LARGE_PAGES)


def make_root(machine: Machine, libraries: Iterable[Path], root: Path) -> None:
    """Makes a folder in which programs for the machine find these libraries, the C library and the compiler's.

    The emulator maps nothing of a page that lies beyond a file's end, though a program's data may continue there. So the files
    end where pages do.
    """
    own = Path("/usr") / machine.triple / "lib"
    (root / "lib").mkdir(parents=True)
    for library in (*(own / name for name in RUNTIME), *libraries):
        _copy(library, root / "lib" / library.name)
    (root / machine.loader).parent.mkdir(exist_ok=True)
    _copy(own / Path(machine.loader).name, root / machine.loader)


def end_with_page(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.truncate(-(-file.stat().st_size // LARGEST_PAGE) * LARGEST_PAGE)


def _copy(library: Path, target: Path) -> None:
    shutil.copyfile(library, target)
    target.chmod(0o755)
    end_with_page(target)


def fetch_packages(architecture: str, packages: Sequence[str], cache: Path) -> Path:
    """A folder of the cache with what Debian's packages for another architecture install: not what they depend on.

    Skips the test on machines that are not Debian.
    """
    try:
        return apt.packages(packages, SUITE, architecture, cache) / apt.TREE
    except apt.NotDebian as error:
        pytest.skip(str(error))
