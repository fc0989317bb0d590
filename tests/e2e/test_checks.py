"""Runs every check under programs/ with the interpreter that has the built wheel.

A check is a function ``check_*`` of a module ``checks_*``; run_checks.py gives each a process. To run one alone:
``python programs/run_checks.py checks_handout check_raw_pointers`` with that interpreter.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
Outcomes = Callable[[str], dict[str, dict[str, Any]]]


def checks() -> list[tuple[str, str]]:
    found = []
    for path in sorted(PROGRAMS.glob("checks_*.py")):
        functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
        found += [(path.stem, function.name) for function in functions if function.name.startswith("check_")]
    return found


@pytest.fixture(scope="session")
def outcomes(lms_python: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcomes of a module's selected checks, by name; the module runs when the first of them is asked for."""
    selected: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_check":
            selected.setdefault(item.callspec.params["module"], []).append(item.callspec.params["name"])
    known: dict[str, dict[str, dict[str, Any]]] = {}
    scratch = tmp_path_factory.mktemp("checks")

    def run(module: str) -> dict[str, dict[str, Any]]:
        if module not in known:
            environment = {
                **os.environ,
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "TMPDIR": str(scratch),
            }
            result = subprocess.run(
                [str(lms_python), str(PROGRAMS / "run_checks.py"), module, *selected[module]],
                capture_output=True,
                text=True,
                cwd=scratch,
                env=environment,
                check=False,
            )
            known[module] = {outcome["check"]: outcome for outcome in map(json.loads, result.stdout.splitlines())}
            if missing := set(selected[module]) - set(known[module]):
                raise RuntimeError(
                    f"{module} ended with status {result.returncode} without {missing}:\n{result.stderr}"
                )
        return known[module]

    return run


@pytest.mark.parametrize(("module", "name"), [pytest.param(*check, id="-".join(check)) for check in checks()])
def test_check(module: str, name: str, outcomes: Outcomes) -> None:
    outcome = outcomes(module)[name]
    if outcome["status"] == "skipped":
        pytest.skip(outcome["text"].strip())
    assert outcome["status"] == "passed", f"{outcome['status']} after {outcome['seconds']} s\n{outcome['text']}"
