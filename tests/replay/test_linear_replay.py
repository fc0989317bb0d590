"""Work grows no faster than the trace that is replayed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import synthetic_traces

from lmsreplay import bound, gaps, report, simulator, stall, trace
from lmsreplay.trace import MARKER_BYTES, Trace
from work import assert_linear

BANDWIDTH = 1e9  # bytes a second


def _made(layers: int) -> Trace:
    return synthetic_traces.train(1, 5, layers=layers)


def _steady(layers: int) -> gaps.Gaps:
    made = _made(layers)
    return gaps.steady_gaps(made, gaps.steady_iteration(made))


def test_a_trace_of_many_events_is_read(tmp_path: Path) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        lines = [f"a 0 1 0 {MARKER_BYTES}", "f 0 1 0"]
        for number in range(1000, 1000 + entries):
            lines += [f"b 0 1 x{number}", f"a 0 1 {number} 4096", f"r 0 1 {number}", "e 0 1", f"f 0 1 {number}"]
        (tmp_path / "trace").write_text("\n".join(lines) + "\n")
        return partial(trace.read, tmp_path / "trace")

    assert_linear(prepare, 50)


@pytest.mark.parametrize("run", [gaps.working_set, gaps.steady_iteration, partial(report.setting, fraction=0.5)])
def test_a_trace_of_many_blocks(run: Callable[[Trace], object]) -> None:
    assert_linear(lambda entries: partial(run, _made(entries)), 10)


def test_the_replay_of_many_blocks() -> None:
    """But for what the policy does."""

    def prepare(entries: int) -> Callable[[], object]:
        made = _made(entries)
        return partial(simulator.replay, made, "lru", gaps.working_set(made) * 2)

    assert_linear(prepare, 10)


@pytest.mark.parametrize("of", ["bytes", "time"])
def test_the_bounds_of_many_gaps(monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """But for the search of the optimum."""
    monkeypatch.setattr(stall._Program, "minimum", lambda self: 0.0)

    def prepare(entries: int) -> Callable[[], object]:
        found = _steady(entries)
        if of == "bytes":
            return partial(bound.program, found, 1 << 20)
        return partial(stall.ordered_bound, found, np.ones(len(found.live)), 1 << 20, BANDWIDTH, 4)

    assert_linear(prepare, 10)
