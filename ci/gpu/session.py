"""What every part needs to run programs with the grafted torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import process

from lmsbuild.errors import ProgramFailed


@dataclass(frozen=True)
class Session:
    """One run of the script."""

    python: Path
    environment: Mapping[str, str]  # in which the interpreter imports the grafted torch
    models: Path  # the file lmsbuild/programs/models.py
    simulated: bool
    scale: float  # multiplies the sizes of what is trained and copied
    deadline: float  # time.monotonic() after which nothing new is begun
    gpu: str | None = None  # the device, as it calls itself

    def words(self, program: str, *arguments: object) -> list[str | Path]:
        return [self.python, process.PROGRAMS / program, *map(str, arguments)]

    def run(self, program: str, *arguments: object, timeout: float = 600) -> dict[str, Any]:
        """Runs a program to its end and returns its answer. `timeout` in seconds. Raises ProgramFailed."""
        return process.run(self.words(program, *arguments), self.environment, timeout)

    def run_all(self, runs: Sequence[tuple[object, ...]], timeout: float = 600) -> list[dict[str, Any] | ProgramFailed]:
        """Runs programs side by side, each given as its name and arguments; returns each one's answer or failure."""
        with ExitStack() as stack:
            programs = [stack.enter_context(self.talk(str(name), *arguments)) for name, *arguments in runs]
            return [_outcome(program, timeout) for program in programs]

    def talk(self, program: str, *arguments: object) -> process.Conversation:
        return process.Conversation(self.words(program, *arguments), self.environment)

    def out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline


def _outcome(program: process.Conversation, timeout: float) -> dict[str, Any] | ProgramFailed:
    try:
        return program.finish(timeout)
    except ProgramFailed as error:
        return error
