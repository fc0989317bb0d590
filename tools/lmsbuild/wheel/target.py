"""What a wheel is built for: an interpreter on this machine's platform."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmsbuild.errors import WrongPlatform

if TYPE_CHECKING:
    from lmsbuild.wheel.name import WheelName

_PYTHON = re.compile(r"3\.([0-9]{1,4})t?")
_ABI = re.compile(r"cp3([0-9]{1,4}t?)m?")
_PLATFORM = re.compile(r"^(?:many)?linux(?:1|2010|2014|_2_\d+)?_")


@dataclass(frozen=True)
class Target:
    """An interpreter, by version, on Linux on this kind of machine."""

    python: str  # such as "3.12", or "3.13t" for the free-threaded one
    machine: str  # such as "x86_64"
    is_running: bool  # whether it is the interpreter that runs this program

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"

    @property
    def minor(self) -> int:
        """The x of Python 3.x."""
        return minor_of(self.python)

    @property
    def interpreter(self) -> str:
        """The tag of the ABI, such as cp312; up to Python 3.7 it ends in "m"."""
        old = "m" if self.minor < 8 else ""
        return "cp" + self.python.replace(".", "") + old

    def pip_arguments(self) -> list[str]:
        """What makes pip choose a wheel for this target."""
        if self.is_running:
            return []
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(glibc_minor(), 16, -1)]
        platforms += [f"manylinux2014_{self.machine}", f"linux_{self.machine}"]
        words = ["--implementation", "cp", "--python-version", self.python.rstrip("t"), "--abi", self.interpreter]
        for name in platforms:
            words += ["--platform", name]
        return words

    def check_python(self, oldest: int) -> None:
        """Raises WrongPlatform when the interpreter is older than 3.`oldest`."""
        if self.minor < oldest:
            raise WrongPlatform(
                f"Large Model Support needs Python 3.{oldest} or newer, not {self.python}: give that with --python"
            )

    def check(self, wheel: WheelName, file_name: str) -> None:
        """Raises WrongPlatform when a wheel of this name is not for this target."""
        if not any(name.endswith(f"_{self.machine}") and "linux" in name for name in wheel.platforms):
            raise WrongPlatform(
                f"{file_name} is for {', '.join(wheel.platforms)}, this machine is linux_{self.machine}: "
                "build on a machine of that kind, or give a wheel for this one"
            )
        if not any(tag.abi == self.interpreter for tag in wheel.tags):
            built_for = min({tag.abi for tag in wheel.tags})
            python = python_of(built_for)
            advice = f"pass --python {python} to build for that, or give" if python else "give"
            raise WrongPlatform(
                f"{file_name} is for {built_for}, not for {self}: {advice} a wheel for {self.interpreter}"
            )


def target_for(python: str | None) -> Target:
    """The target for `--python`, or for the running interpreter. Raises WrongPlatform."""
    if sys.platform != "linux":
        raise WrongPlatform(f"wheels can be patched on Linux only, this is {sys.platform}")
    free_threaded = "t" if "t" in getattr(sys, "abiflags", "") else ""
    running = f"{sys.version_info.major}.{sys.version_info.minor}{free_threaded}"
    if python is not None and not _PYTHON.fullmatch(python):
        raise WrongPlatform(f"--python takes a version such as 3.12, not {python!r}")
    chosen = python or running
    return Target(chosen, platform.machine(), chosen == running)


def python_of(abi: str) -> str | None:
    """The version of Python 3 that an ABI tag stands for: 3.12 for cp312, 3.7 for cp37m. None: it is another tag."""
    found = _ABI.fullmatch(abi)
    return f"3.{found[1]}" if found else None


def machine_of(platform_tag: str) -> str:
    """The kind of machine that a wheel's platform tag for Linux names, such as x86_64."""
    return _PLATFORM.sub("", platform_tag)


def minor_of(python: str) -> int:
    """The x of Python 3.x, of a version such as "3.13t"."""
    return int(python.partition(".")[2].rstrip("t"))


def glibc_minor() -> int:
    """The x of this machine's glibc 2.x. Raises WrongPlatform when it has another C library."""
    try:
        return int((os.confstr("CS_GNU_LIBC_VERSION") or "").split(".")[1])
    except (ValueError, IndexError, OSError) as error:
        raise WrongPlatform(
            "official wheels need the GNU C library (glibc), which this machine does not have"
        ) from error
