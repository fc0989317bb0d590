"""Programs as people write them, with real libraries: what they compute and save with LMS equals what they do without, to the bit.

Every program runs without LMS, with an ample limit, and with one of 15 % of the peak that it had then; before a release of
50 %, too, and to a file, and those of SLOW and LIKE_OTHERS. LMS_TEST_SCALE=2 makes the models twice as wide.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import program_runs

STOCK = "stock"
RUNS = ("ample", "0.5", "0.15", "0.15:store")  # compared with that
LATER = ("0.5", "0.15:store")  # the checks of tests/e2e page to files
SLOW = ("aot_inductor", "monai_unet", "timm_resnet50")
LIKE_OTHERS = (
    "generate",
    "lightning_fit",
    "peft_lora",
    "trainer_bert",
    "trainer_t5",
)  # trainer_gpt2, accelerate_resume
AT_ONCE = 2  # programs

Outcomes = dict[str, dict[str, Any]]  # by run


@pytest.fixture(scope="session")
def outcomes_of(request: pytest.FixtureRequest, libraries_python: Path) -> Iterator[Callable[[str], Outcomes]]:
    """The outcomes of a program. All that are selected run, two at a time, from when the first is asked for."""

    def run(name: str, runs: list[str]) -> Outcomes:
        return {each["run"]: each for each in program_runs.outcomes(libraries_python, name, (STOCK, *runs))}

    selected: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_program":
            selected.setdefault(item.callspec.params["name"], []).append(item.callspec.params["run"])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[str, Future[Outcomes]] = {name: pool.submit(run, name, runs) for name, runs in selected.items()}
        yield lambda name: running[name].result()
        for each in running.values():
            each.cancel()


def _sample(names: Iterable[str], release: Container[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.release if name in release else ()) for name in names]


@pytest.mark.parametrize("run", _sample(RUNS, LATER))
@pytest.mark.parametrize("name", _sample(program_runs.NAMES, (*SLOW, *LIKE_OTHERS)))
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
