"""How a program of this folder answers: one JSON object a line, on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

# Whatever else prints to standard output goes to standard error: libraries do.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(values: Mapping[str, Any]) -> None:
    _answers.write(json.dumps(values) + "\n")
    _answers.flush()


def requests() -> list[str]:
    """The words of the next request; empty when there will be no more."""
    return sys.stdin.readline().split()
