"""What crosses between this machine and a worker of a cluster: text alone.

Dask unpickles what it is sent as it reads from its connection, and a worker that cannot, since it has no lmsbuild, is lost with all
that it does for others. So a worker gets an expression for Python's own `eval`, and fails as it evaluates it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmsbuild.matrix import build_row
from lmsbuild.matrix.build_row import Job, Outcome
from lmsbuild.matrix.row import Row
from lmsbuild.matrix.stamp import Product

EXPRESSION = (
    f"__import__({__name__!r}, fromlist=['run']).run(job)"  # what a worker evaluates, with `job` as `packed` has it
)


def packed(job: Job) -> str:
    return json.dumps({**asdict(job), "output": str(job.output)})


def run(job: str) -> str:
    """In a worker: builds the row, and returns its outcome, packed."""
    given: dict[str, Any] = json.loads(job)
    options = tuple(given["options"])
    return json.dumps(asdict(build_row.run(Job(Row(**given["row"]), Path(given["output"]), options, given["inputs"]))))


def outcome(text: str) -> Outcome:
    """What `run` returned."""
    given: dict[str, Any] = json.loads(text)
    products = tuple(Product(**product) for product in given.pop("products"))
    return Outcome(Row(**given.pop("row")), products=products, **given)
