"""Every way in which the script can fail: one class per failure, with its own exit code.

A message says what is wrong, with the names and numbers of this case, and what to do next. 1 is "a result is wrong", 2
is wrong usage, 130 an interruption.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class Failure(Exception):
    """A failure that the reader can do something about; anything else is a bug and shows its traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.facts = dict(facts or {})  # what was found all the same, for the file of results


class WrongResult(Failure):
    """A correctness check failed, or a contender did not train to the end."""


class NoGpu(Failure):
    exit_code = 3


class UnknownRelease(Failure):
    """The installed torch is none of the releases that the patch is made for."""

    exit_code = 4


class NoRuntime(Failure):
    """The headers or the library of CUDA's runtime are nowhere on this machine."""

    exit_code = 5


class BuildFailed(Failure):
    """There is no C++ compiler, or it failed."""

    exit_code = 6


class NoTorch(Failure):
    exit_code = 7


class ProgramFailed(Failure):
    """A program that measures or checks did not run to its end."""

    exit_code = 8


class OutOfTime(Failure):
    """A part ended before all of it was done."""

    exit_code = 9


class NotWritable(Failure):
    """The folder for the results, or the one that keeps the graft, cannot be written."""

    exit_code = 10


class NoTensorflow(Failure):
    """The interpreter's TensorFlow is not a patched one that is built for CUDA."""

    exit_code = 11
