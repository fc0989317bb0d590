"""Schedules that know the whole trace: the cheapest choice of gaps, found by integer programming."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import milp

from lmsreplay.bound import program
from lmsreplay.gaps import Gaps
from lmsreplay.trace import ALLOCATE, Trace

#: The search stops when the schedule is proven to be within this fraction of the optimum, or out of time.
RELATIVE_GAP = 0.001


def best_schedule(gaps: Gaps, limit: int, seconds: float = 60.0) -> NDArray[np.bool_]:
    """The gaps to evict in, so that the iteration fits under the limit and moves as few bytes as possible.

    :param seconds: time for the search; what was found by then is returned.
    :raises ValueError: no schedule fits under the limit, or none was found in time.
    """
    cost, constraints, bounds = program(gaps, limit)
    integral = np.zeros(len(cost))
    integral[: len(gaps.begin) + len(gaps.written)] = 1
    options = {"time_limit": seconds, "mip_rel_gap": RELATIVE_GAP}
    result = milp(cost, constraints=constraints, bounds=bounds, integrality=integral, options=options)
    if result.x is None:
        raise ValueError(f"no schedule under a limit of {limit} bytes: {result.message}")
    evicted: NDArray[np.bool_] = result.x[: len(gaps.begin)] > 0.5
    return evicted


def evictions(trace: Trace, gaps: Gaps, evicted: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """By event of the trace: whether the schedule evicts its block afterwards, in every iteration that is long enough."""
    flags = np.zeros(len(trace.kind), np.uint8)
    moments = np.unique(gaps.last[evicted] % len(gaps.live))
    for first, stop in zip(trace.iterations[:-1], trace.iterations[1:], strict=True):
        events = np.flatnonzero(trace.kind[first:stop] >= ALLOCATE) + first
        if len(events) == len(gaps.live):
            flags[events[moments]] = 1
    return flags
