"""Checks in programs that another interpreter runs: a check is a function ``check_*`` of a module ``checks_*``.

e2e/programs/run_checks.py gives each a process.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from check_names import check_names

RUNNER = Path(__file__).parents[1] / "e2e" / "programs" / "run_checks.py"


def parameters(programs: Path, release: Container[str] = ()) -> list[Any]:
    """(module, name) of every check in the folder, for pytest; those of `release` run before a release."""
    return [
        pytest.param(path.stem, name, id=f"{path.stem}-{name}", marks=pytest.mark.release if name in release else ())
        for path in sorted(programs.glob("checks_*.py"))
        for name in check_names(path)
    ]


class Outcomes:
    """The outcomes of the checks that are selected; a module runs when the first of its checks is asked for.

    `items` are the session's, `test` the name of the test function that has the checks as parameters.
    """

    def __init__(
        self, items: Iterable[pytest.Item], test: str, python: Path, environment: Mapping[str, str], folder: Path
    ) -> None:
        self._selected: dict[str, list[str]] = {}
        for item in items:
            if isinstance(item, pytest.Function) and item.originalname == test:
                parameters = item.callspec.params
                self._selected.setdefault(parameters["module"], []).append(parameters["name"])
        self._python, self._environment, self._folder = python, environment, folder
        self._known: dict[str, dict[str, dict[str, Any]]] = {}

    def of(self, module: str, name: str) -> dict[str, Any]:
        """The outcome of one check: its status, text and seconds."""
        if module not in self._known:
            self._known[module] = self._run(module)
        return self._known[module][name]

    def _run(self, module: str) -> dict[str, dict[str, Any]]:
        names = self._selected[module]
        result = subprocess.run(
            [self._python, RUNNER, module, *names],
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environment,
            check=False,
        )
        outcomes = {outcome["check"]: outcome for outcome in map(json.loads, result.stdout.splitlines())}
        if missing := set(names) - set(outcomes):
            raise RuntimeError(f"{module} ended with status {result.returncode} without {missing}:\n{result.stderr}")
        return outcomes
