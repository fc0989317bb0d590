"""Programs as people write them, with real libraries: what they compute and save with LMS equals what they do without, to the bit.

Every program runs without LMS, with an ample limit, and with one of 15 % of the peak that it had then; with
LMS_TEST_FULL=1 of 50 %, too, and those of SLOW. LMS_TEST_SCALE=2 makes the models twice as wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import program_runs
from samples import FULL

STOCK = "stock"
RUNS = ("ample", *(("0.5",) if FULL else ()), "0.15", "0.15:store")  # compared with that
SLOW = ("aot_inductor", "monai_unet")
NAMES = [name for name in program_runs.NAMES if FULL or name not in SLOW]
AT_ONCE = 2  # programs

Outcomes = dict[str, dict[str, Any]]  # by run


@pytest.fixture(scope="session")
def outcomes_of(request: pytest.FixtureRequest, libraries_python: Path) -> Iterator[Callable[[str], Outcomes]]:
    """The outcomes of a program. All that are selected run, two at a time, from when the first is asked for."""

    def run(name: str) -> Outcomes:
        return {each["run"]: each for each in program_runs.outcomes(libraries_python, name, (STOCK, *RUNS))}

    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = dict.fromkeys(item.callspec.params["name"] for item in items if item.originalname == "test_program")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[str, Future[Outcomes]] = {name: pool.submit(run, name) for name in names}
        yield lambda name: running[name].result()
        for each in running.values():
            each.cancel()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", NAMES)
def test_program(name: str, run: str, outcomes_of: Callable[[str], Outcomes]) -> None:
    stock, outcome = outcomes_of(name)[STOCK], outcomes_of(name)[run]
    for one in (stock, outcome):
        assert "failure" not in one, f"{name} with {one['run']} failed after {one['seconds']} s:\n{one['failure']}"
    expected, found = stock["results"], outcome["results"]
    names = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    different = "\n".join(f"{key}: {expected.get(key)}, with LMS {found.get(key)}" for key in names[:40])
    assert expected and not names, f"{len(names)} of {len(expected)} results differ:\n{different}"
    for stats in outcome["stats"]:
        assert stats["allocated_bytes.peak"] > 0, stats
        assert (stats["out.bytes"] > 0) == (run != "ample"), stats
