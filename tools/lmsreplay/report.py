"""What a trace says under a limit: bytes moved by every policy and schedule, and the time that a program waits."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from lmsreplay import bound, gaps, offline, simulator, stall
from lmsreplay.simulator import Result
from lmsreplay.trace import ALLOCATE, Trace

MIB = 1 << 20

#: What is replayed besides the pager's policies: Belady's rule, the best schedule of the search.
_OFFLINE = {"Belady": "offline", "best": "offline"}


def policies() -> dict[str, str]:
    """What is replayed, by the name in reports: the policy of the simulator."""
    return {**{name: name for name in simulator.policies()}, **_OFFLINE}


@dataclass(frozen=True)
class Setting:
    """A trace, and a limit as a fraction of its peak."""

    trace: Trace
    fraction: float
    iteration: int  # the steady one that the offline schedules are made for
    gaps: gaps.Gaps
    peak: int  # bytes that live at a time, at most
    limit: int  # bytes
    raised: bool  # the limit is the largest working set, which is more than the fraction

    @property
    def judged(self) -> slice:
        """The iterations that are reported: from the third on; the last one lacks what the next would free."""
        return slice(2, len(self.trace.iterations) - 2)


def setting(trace: Trace, fraction: float) -> Setting:
    """:raises ValueError: the trace has no steady iteration, or fewer than four."""
    if len(trace.iterations) < 5:
        raise ValueError(f"{trace.name}: fewer than four iterations; record more of them")
    peak = int(trace.live_bytes().max())
    largest = gaps.working_set(trace)
    iteration = gaps.steady_iteration(trace)
    limit = max(int(peak * fraction), largest)
    return Setting(
        trace=trace,
        fraction=fraction,
        iteration=iteration,
        gaps=gaps.steady_gaps(trace, iteration),
        peak=peak,
        limit=limit,
        raised=limit > int(peak * fraction),
    )


@dataclass(frozen=True)
class Moved:
    """Bytes moved by one policy or schedule, by iteration, and their mean over the judged ones."""

    bytes_in: list[int]
    bytes_out: list[int]
    mean_in: float
    mean_out: float
    departures: int
    over_limit: int  # requests that went past the limit

    @property
    def mean(self) -> float:
        return self.mean_in + self.mean_out


@dataclass(frozen=True)
class BytesReport:
    """Bytes per iteration under one setting."""

    model: str
    fraction: float
    peak: int
    limit: int
    raised: bool
    lower_bound: float
    moved: dict[str, Moved]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def _moved(result: Result, judged: slice) -> Moved:
    return Moved(
        bytes_in=result.bytes_in.tolist(),
        bytes_out=result.bytes_out.tolist(),
        mean_in=float(result.bytes_in[judged].mean()),
        mean_out=float(result.bytes_out[judged].mean()),
        departures=result.departures,
        over_limit=result.over,
    )


def replays(at: Setting) -> dict[str, Result]:
    """Every policy and schedule on the trace, with copies that take no time."""
    evicted = offline.best_schedule(at.gaps, at.limit)
    evict = offline.evictions(at.trace, at.gaps, evicted)
    return {
        name: simulator.replay(at.trace, policy, at.limit, evict=evict if name == "best" else None)
        for name, policy in policies().items()
    }


def bytes_report(at: Setting) -> BytesReport:
    """Replays the trace under every policy and schedule, and derives the lower bound."""
    return BytesReport(
        model=at.trace.name,
        fraction=at.fraction,
        peak=at.peak,
        limit=at.limit,
        raised=at.raised,
        lower_bound=bound.lower_bound(at.gaps, at.limit),
        moved={name: _moved(result, at.judged) for name, result in replays(at).items()},
    )


@dataclass(frozen=True)
class StallReport:
    """Seconds per iteration under one setting and link."""

    model: str
    fraction: float
    link: float  # GB/s in each direction
    speedup: float
    compute: float
    on_demand_lru: float
    on_demand: float  # policy `iteration`, nothing ahead of need
    ahead: float  # the same, with early writeback and prefetch
    bytes_in: float  # of the run with prefetch
    bytes_out: float
    busy_bound: float
    ordered_bound: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def stall_report(at: Setting, link: float, speedup: float, slices: int = stall.SLICES) -> StallReport:
    """Replays the trace with a clock and a link of ``link`` GB/s in each direction; ``slices`` as in ordered_bound."""
    trace, judged, bandwidth = at.trace, at.judged, link * 1e9
    seconds = stall.compute_seconds(trace, speedup, at.iteration)
    first, stop = trace.iterations[at.iteration], trace.iterations[at.iteration + 1]
    events = np.flatnonzero(trace.kind[first:stop] >= ALLOCATE)
    by_moment = np.add.reduceat(seconds[first:stop], events)
    by_moment[0] += seconds[first : first + events[0]].sum()

    def timed(policy: str, ahead: bool) -> Result:
        return simulator.replay(trace, policy, at.limit, compute=seconds, bandwidth=bandwidth, ahead=ahead)

    with_prefetch = timed("iteration", True)
    bytes_in = float(with_prefetch.bytes_in[judged].mean())
    bytes_out = float(with_prefetch.bytes_out[judged].mean())
    compute = float(seconds[first:stop].sum())
    return StallReport(
        model=trace.name,
        fraction=at.fraction,
        link=link,
        speedup=speedup,
        compute=compute,
        on_demand_lru=float(timed("lru", False).seconds[judged].mean()),
        on_demand=float(timed("iteration", False).seconds[judged].mean()),
        ahead=float(with_prefetch.seconds[judged].mean()),
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        busy_bound=stall.busy_bound(compute, bytes_in, bytes_out, bandwidth),
        ordered_bound=stall.ordered_bound(at.gaps, by_moment, at.limit, bandwidth, slices),
    )


def bytes_table(reports: list[BytesReport]) -> str:
    """A Markdown table; MiB per iteration, in + out, and the sum as a multiple of the best schedule's."""
    lines = [
        "| model | memory | limit | " + " | ".join(policies()) + " | lower bound | iteration ÷ best |",
        "| --- | --- | ---: |" + " ---: |" * (len(policies()) + 2),
    ]
    for report in reports:
        cells = [f"{m.mean_in / MIB:.1f} + {m.mean_out / MIB:.1f}" for m in report.moved.values()]
        limit = f"{report.limit / MIB:.1f}{' (working set)' if report.raised else ''}"
        ratio = report.moved["iteration"].mean / report.moved["best"].mean if report.moved["best"].mean else 1.0
        lines.append(
            f"| {report.model} | {report.fraction:.0%} | {limit} | "
            + " | ".join(cells)
            + f" | {report.lower_bound / MIB:.1f} | {ratio:.3f} |"
        )
    return "\n".join(lines)


def stall_table(reports: list[StallReport]) -> str:
    """A Markdown table; milliseconds per iteration, and the time with prefetch as a multiple of each bound."""
    heading = (
        "| model | memory | GB/s | compute | LRU, on demand | iteration, on demand | iteration, ahead"
        " | ordered bound | ÷ ordered | busy bound | ÷ busy | ÷ max(compute, bytes ÷ link) |"
    )
    lines = [heading, "| --- | --- |" + " ---: |" * 10]
    for report in reports:
        total = max(report.compute, (report.bytes_in + report.bytes_out) / (report.link * 1e9))
        times = (report.compute, report.on_demand_lru, report.on_demand, report.ahead, report.ordered_bound)
        lines.append(
            f"| {report.model} | {report.fraction:.0%} | {report.link:g} | "
            + " | ".join(f"{1e3 * t:.2f}" for t in times)
            + f" | {report.ahead / report.ordered_bound:.2f} | {1e3 * report.busy_bound:.2f}"
            + f" | {report.ahead / report.busy_bound:.2f} | {report.ahead / total:.2f} |"
        )
    return "\n".join(lines)
