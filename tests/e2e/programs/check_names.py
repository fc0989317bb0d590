"""What is a check: a function ``check_*`` of a module, found without importing it, which may start CUDA."""

from __future__ import annotations

import ast
from pathlib import Path

# Of these modules most checks train, compile or list operators, for which torch imports 800 modules more.
TRAIN = ("checks_compile", "checks_every_release", "checks_models", "checks_operators", "checks_runtime")


def check_names(module: Path) -> list[str]:
    """The names of all checks in the file, in its order."""
    functions = (node for node in ast.parse(module.read_text()).body if isinstance(node, ast.FunctionDef))
    return [function.name for function in functions if function.name.startswith("check_")]
