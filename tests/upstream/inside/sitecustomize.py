"""Enables LMS in every Python process that a test file starts, as soon as it has imported torch, and not before.

A file that sets variables of the environment before it imports torch finds them heeded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any


class EnableAfterImport(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *others: Any) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            module.lms.enable("cpu", limit=int(os.environ["LMS_UPSTREAM_LIMIT"]), min_size=1)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "LMS_UPSTREAM_LIMIT" in os.environ:
    sys.meta_path.insert(0, EnableAfterImport())
