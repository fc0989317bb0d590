"""What is a check: a function ``check_*`` of a module, found without importing it, which may start CUDA."""

from __future__ import annotations

import ast
from pathlib import Path


def check_names(module: Path) -> list[str]:
    """The names of all checks in the file, in its order."""
    functions = (node for node in ast.parse(module.read_text()).body if isinstance(node, ast.FunctionDef))
    return [function.name for function in functions if function.name.startswith("check_")]
