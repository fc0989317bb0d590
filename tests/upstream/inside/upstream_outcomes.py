"""A plugin of pytest: runs a seeded sample of the tests, and writes what becomes of each as soon as it is known.

LMS_UPSTREAM_OUTCOMES names the file, of one JSON object a line: `[test, null]` when a test begins, and `[test, outcome, text,
seconds of processors]` when it has ended. Tests that are in the file already are left out, so that a new process goes on where
one died. A test that takes too long ends the process, with all threads' stacks on stderr.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = Path(os.environ["LMS_UPSTREAM_OUTCOMES"])
FRACTION = float(os.environ["LMS_UPSTREAM_FRACTION"])
SEED = os.environ["LMS_UPSTREAM_SEED"]
LIMIT_SECONDS = 900
# Under the limit each operation moves such a tensor as a whole, and there are hundreds: tests with larger ones are left out,
# with LMS and without.
LARGEST_TENSOR = 4 << 30  # bytes
_output = FILE.open("a")
_stderr = os.dup(2)
_worst = pytest.StashKey[list[str]]()


def _chosen(test: str) -> bool:
    """Whether the test belongs to the sample. That does not depend on which other tests there are."""
    drawn = int.from_bytes(hashlib.sha256(f"{SEED} {test}".encode()).digest()[:8], "big")
    return drawn < FRACTION * 2**64


def _write(*row: object) -> None:
    _output.write(json.dumps(row) + "\n")
    _output.flush()


def _processors() -> float:
    """Seconds, of this process and of its children that have ended."""
    return sum(os.times()[:4])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = {json.loads(line)[0] for line in FILE.read_text().splitlines()}
    items[:] = [item for item in items if _chosen(item.nodeid) and item.nodeid not in known]


def pytest_collection_finish() -> None:
    """Changes what the tests share, once they have imported it."""
    types = sys.modules.get("torch.testing._internal.common_device_type")
    if types is not None:
        stock = types._has_sufficient_memory
        types._has_sufficient_memory = lambda device, size: size <= LARGEST_TENSOR and stock(device, size)
    common = sys.modules.get("torch.testing._internal.common_distributed")
    # Tests of several processes fork them: to start each anew takes seconds, of which only imports are new.
    if common is not None:
        fork = common.torch.multiprocessing.get_context("fork").Process
        common.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(fork)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _write(item.nodeid, None)
    item.stash[_worst] = ["passed", ""]
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True, file=_stderr)
    begin = _processors()
    yield
    seconds = _processors() - begin
    faulthandler.cancel_dump_traceback_later()
    _write(item.nodeid, *item.stash[_worst], round(seconds, 3))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.outcome != "passed" and item.stash[_worst][0] != "failed":
        item.stash[_worst][:] = [report.outcome, report.longreprtext[-6000:]]
