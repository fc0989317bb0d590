"""Checks in programs that another interpreter runs: a check is a function ``check_*`` of a module ``checks_*``.

e2e/programs/run_checks.py gives each a process.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from check_names import TRAIN, check_names

RUNNER = Path(__file__).parents[1] / "e2e" / "programs" / "run_checks.py"


def parameters(programs: Path, release: Container[str] = ()) -> list[Any]:
    """(module, name) of every check in the folder, for pytest; those of `release` run before a release."""
    return [
        pytest.param(path.stem, name, id=f"{path.stem}-{name}", marks=pytest.mark.release if name in release else ())
        for path in sorted(programs.glob("checks_*.py"))
        for name in check_names(path)
    ]


class Outcomes:
    """The outcomes of the checks that are selected. They all run, two at a time, from when the first is asked for.

    `items` are the session's, `test` the name of the test function that has the checks as parameters.
    """

    def __init__(
        self, items: Iterable[pytest.Item], test: str, python: Path, environment: Mapping[str, str], folder: Path
    ) -> None:
        self._selected: dict[bool, list[tuple[str, str]]] = {}  # by whether their modules train
        for item in items:
            if isinstance(item, pytest.Function) and item.originalname == test:
                module, name = item.callspec.params["module"], item.callspec.params["name"]
                self._selected.setdefault(module in TRAIN, []).append((module, name))
        self._python, self._environment, self._folder = python, environment, folder
        self._running: dict[bool, subprocess.Popen[str]] = {}
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    def of(self, module: str, name: str) -> dict[str, Any]:
        """The outcome of one check, when it is known: its status, text and seconds."""
        trains = module in TRAIN
        if trains not in self._running:
            self._running[trains] = self._start(self._selected[trains], self._errors(trains))
        process = self._running[trains]
        assert process.stdout is not None
        while (module, name) not in self._known:
            line = process.stdout.readline()
            if not line:
                said = self._errors(trains).read_text()
                raise RuntimeError(f"{module} ended with status {process.wait()} without {name}:\n{said}")
            outcome = json.loads(line)
            self._known[outcome["module"], outcome["check"]] = outcome
        return self._known[module, name]

    def _errors(self, trains: bool) -> Path:
        return self._folder / f"errors-{trains}"

    def _start(self, checks: Iterable[tuple[str, str]], errors: Path) -> subprocess.Popen[str]:
        with tempfile.TemporaryFile("w+") as named, errors.open("w") as file:
            named.writelines(f"{module} {name}\n" for module, name in checks)
            named.seek(0)
            process = subprocess.Popen(
                [self._python, RUNNER],
                stdin=named,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
        atexit.register(_end, process)
        return process


def _end(process: subprocess.Popen[str]) -> None:
    """Its checks with it, when the tests are interrupted."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
