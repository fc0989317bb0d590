"""How long a program waits for copies: the replay with a clock and a link, and two bounds on what is possible.

An operation takes the time that it took when the trace was recorded, divided by a speed-up that stands for a GPU: time
outside of operations (Python) does not count, since a GPU works through a queue meanwhile. The link copies in both
directions at once, one block at a time in each.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from lmsreplay.gaps import Gaps
from lmsreplay.trace import BEGIN, END, Trace

#: The default speed-up. The recording machine has two cores: 77 GFLOP/s (matrix product, float32) and 16 GB/s (memory).
#: An NVIDIA V100 has 15.7 TFLOP/s and 900 GB/s, that is 204 and 56 times as much; 100 is about their geometric mean.
SPEEDUP = 100.0

#: GB/s in each direction of a link: PCIe 3, 4 and 5 with 16 lanes, NVLink-C2C.
LINKS = (12.0, 25.0, 55.0, 450.0)

#: Into how many slices of equal numbers of events an iteration is cut for :func:`ordered_bound`.
SLICES = 40


def compute_seconds(trace: Trace, speedup: float, iteration: int) -> NDArray[np.float64]:
    """By event: the time from it to the next one, as far as some operation is under way, divided by ``speedup``.

    Iterations with as many events as ``iteration`` (from 0) all get the median of their times, event by event, so that
    noise in the recording does not blur the comparison.
    """
    depth = np.cumsum(np.where(trace.kind == BEGIN, 1, 0) - np.where(trace.kind == END, 1, 0))
    elapsed = np.diff(trace.time, append=trace.time[-1:])
    seconds: NDArray[np.float64] = np.where(depth > 0, elapsed, 0).astype(np.float64) * 1e-9 / speedup
    length = trace.iterations[iteration + 1] - trace.iterations[iteration]
    alike = [slice(a, b) for a, b in itertools.pairwise(trace.iterations) if b - a == length]
    median = np.median([seconds[span] for span in alike], axis=0)
    for span in alike:
        seconds[span] = median
    return seconds


def busy_bound(compute: float, bytes_in: float, bytes_out: float, bandwidth: float) -> float:
    """Seconds that the computation takes, or the busier direction of the link, whichever is longer."""
    return max(compute, bytes_in / bandwidth, bytes_out / bandwidth)


class _Program:
    """A linear program that grows by columns and by entries of its rows ``<= right``."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.right: list[float] = []

    def column(self, low: float, high: float, cost: float = 0.0) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        return len(self.cost) - 1

    def row(self, right: float) -> int:
        self.right.append(right)
        return len(self.right) - 1

    def add(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def at_most(self, smaller: int, larger: int) -> None:
        row = self.row(0.0)
        self.add(row, smaller, 1.0)
        self.add(row, larger, -1.0)

    def minimum(self) -> float:
        matrix = coo_matrix((self.values, (self.rows, self.columns)), shape=(len(self.right), len(self.cost))).tocsr()
        bounds = np.column_stack([self.low, self.high])
        result = linprog(self.cost, A_ub=matrix, b_ub=self.right, bounds=bounds, method="highs-ipm")
        if result.fun is None:
            raise ValueError(f"no schedule fits: {result.message}")
        return float(result.fun)


def ordered_bound(
    gaps: Gaps, seconds: NDArray[np.float64], limit: int, bandwidth: float, slices: int = SLICES
) -> float:
    """Seconds per steady iteration below which no schedule gets, whatever it evicts and however it copies.

    A linear relaxation of what any schedule must obey: contents leave after they were made, come back before they are
    used, and what is resident fits under the limit. The iteration is cut into slices; blocks are divisible; a slice takes
    at least its computation, and at least as long as what it copies in either direction; within a slice the order does
    not count, and the limit holds at its densest moment only.

    :param seconds: by moment of the iteration, the computation until the next.
    :param slices: more of them make the bound tighter, and slower to compute.
    :raises ValueError: no schedule fits under the limit.
    """
    moments = len(gaps.live)
    edges = np.unique(np.linspace(0, moments, min(slices, moments) + 1).astype(int))
    count = len(edges) - 1
    slice_of = np.searchsorted(edges, np.arange(moments), side="right") - 1
    compute = np.add.reduceat(seconds, edges[:-1])
    densest = [int(low + np.argmax(gaps.live[low:high])) for low, high in itertools.pairwise(edges)]
    unit = float(limit)
    linear = _Program()
    for t in range(count):
        linear.column(float(compute[t]), np.inf, cost=1.0)  # the time of the slice
    out_row = [linear.row(0.0) for _ in range(count)]
    in_row = [linear.row(0.0) for _ in range(count)]
    memory_row = [linear.row((limit - float(gaps.live[m])) / unit) for m in densest]
    for t in range(count):
        linear.add(out_row[t], t, -bandwidth / unit)
        linear.add(in_row[t], t, -bandwidth / unit)

    def slices_of(begin: int, end: int) -> list[int]:
        first, last = slice_of[begin % moments], slice_of[(end - 1) % moments]
        passed = (int(last) - int(first)) % count
        if passed == 0 and end - begin > moments // 2:
            passed = count  # around the whole iteration
        return [(int(first) + k) % count for k in range(passed + 1)]

    by_version = np.argsort(gaps.version, kind="stable")  # the gaps, those of one version beside each other
    first_of = np.searchsorted(gaps.version[by_version], np.arange(len(gaps.written) + 1))
    for version in range(len(gaps.written)):
        made = int(gaps.made[version])
        members = by_version[first_of[version] : first_of[version + 1]]
        members = members[np.argsort((gaps.begin[members] - made) % moments)]
        costs = gaps.written[version] > 0
        size = float(gaps.nbytes[members[0]]) / unit if len(members) else 0.0
        written: int | None = None  # column: what of this version was written until the end of the slice before
        slice_before: int | None = None
        for g in members.tolist():
            begin, end = int(gaps.begin[g]), int(gaps.end[g])
            passed = slices_of(begin, end)
            away_before: int | None = None
            for index, t in enumerate(passed):
                if costs and slice_before != t:
                    now = linear.column(0.0, size)
                    linear.add(out_row[t], now, 1.0)
                    if written is not None:
                        linear.add(out_row[t], written, -1.0)
                        linear.at_most(written, now)
                    written, slice_before = now, t
                is_last = index == len(passed) - 1
                away = linear.column(0.0, 0.0 if is_last and gaps.read[g] else size)  # at the end of the slice
                back = linear.column(0.0, size if gaps.read[g] else 0.0)
                linear.add(in_row[t], back, 1.0)
                if any(begin <= m < end for m in (densest[t], densest[t] - moments)):
                    linear.add(memory_row[t], away, -1.0)
                    linear.add(memory_row[t], back, -1.0)
                row = linear.row(0.0 if costs else size)  # only what was written can have left
                linear.add(row, away, 1.0)
                linear.add(row, back, 1.0)
                if written is not None:
                    linear.add(row, written, -1.0)
                if away_before is not None:
                    row = linear.row(0.0)  # what was away is still, or came back
                    linear.add(row, away_before, 1.0)
                    linear.add(row, away, -1.0)
                    linear.add(row, back, -1.0)
                away_before = away
    return linear.minimum()
