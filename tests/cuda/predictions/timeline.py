"""What happened when in virtual time: the table that sim_write_timeline writes, summed up and drawn."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: What a device or the host can be busy with, and how that is called. Lanes as in simulator/clock.cc.
LANES = {
    "kernel": "kernels",
    "in": "copies in",
    "out": "copies out",
    "operator": "host: PyTorch",
    "call": "host: calls",
    "wait": "host: waits",
    "worker": "LMS's thread",
}
HOST = -1


@dataclass(frozen=True)
class Event:
    """Times in seconds from the first moment."""

    device: int  # or HOST
    stream: int  # of the host: the thread
    lane: str
    start: float
    end: float
    nbytes: int
    name: str


def read(path: Path, origin_ns: int) -> list[Event]:
    """Threads of the host that run no operators are LMS's: what they do is a lane of its own."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    programs = {row["stream"] for row in rows if row["lane"] == "operator"}
    return [
        Event(
            int(row["device"]),
            int(row["stream"]),
            "worker" if int(row["device"]) == HOST and row["stream"] not in programs else row["lane"],
            (int(row["start_ns"]) - origin_ns) / 1e9,
            (int(row["end_ns"]) - origin_ns) / 1e9,
            int(row["bytes"]),
            row["name"],
        )
        for row in rows
    ]


def busy_seconds(events: Iterable[Event]) -> dict[str, float]:
    """By lane. The events of a lane do not overlap: an engine, and a thread, does one thing at a time."""
    found = dict.fromkeys(LANES, 0.0)
    for event in events:
        found[event.lane] += event.end - event.start
    return found


def moved_bytes(events: Iterable[Event], lane: str) -> int:
    """By the link of the device that moves most."""
    found = {0: 0}
    for event in events:
        if event.lane == lane:
            found[event.device] = found.get(event.device, 0) + event.nbytes
    return max(found.values())


def merged(spans: Iterable[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Spans, each its start and its end, of which those that are no further apart have become one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def parted(events: Iterable[Event]) -> dict[str, list[Event]]:
    """By lane, with a lane for each stream of a device; all threads of a program share theirs. The names are shown."""
    by_stream: dict[tuple[str, int, int], list[Event]] = {(lane, HOST, 0): [] for lane in LANES}
    for event in events:
        stream = event.stream if event.device != HOST else 0
        by_stream.setdefault((event.lane, event.device, stream), []).append(event)
    found = {}
    for lane, shown in LANES.items():
        used = sorted(key for key, inside in by_stream.items() if key[0] == lane and inside)
        devices = {device for _, device, _ in used}
        for key in used or [(lane, HOST, 0)]:
            gpu = f"GPU {key[1]}, " if len(devices) > 1 else ""
            found[shown if len(used) < 2 else f"{shown}, {gpu}stream {key[2]}"] = by_stream[key]
    return found


def draw(rows: Sequence[tuple[str, list[Event], float]], title: str, path: Path) -> None:
    """A picture of one step for each row: its name, its events, and how many seconds the step takes. Lanes of one kind
    have one colour.
    """
    from matplotlib import pyplot

    finest = max(seconds for _, _, seconds in rows) / 1000  # what nobody sees is not drawn
    lanes = [parted(events) for _, events, _ in rows]
    heights = [0.214 * len(one) for one in lanes]
    figure, axes = pyplot.subplots(
        len(rows), 1, sharex=True, figsize=(10, sum(heights) + 0.8), squeeze=False, height_ratios=heights
    )
    colours = {lane: f"C{place}" for place, lane in enumerate(reversed(LANES))}
    for axis, (name, _, seconds), row in zip(axes[:, 0], rows, lanes, strict=True):
        for place, events in enumerate(reversed(row.values())):
            spans = merged(((event.start, event.end) for event in events if event.end > event.start), finest)
            bars = [(1e3 * start, 1e3 * (end - start)) for start, end in spans]
            axis.broken_barh(bars, (place - 0.4, 0.8), facecolors=colours[events[0].lane] if events else None)
        axis.set_ylim(-0.6, len(row) - 0.4)
        axis.set_yticks(range(len(row)), list(reversed(row)), fontsize=7)
        axis.set_title(f"{name}: {1e3 * seconds:.0f} ms on average", fontsize=9, loc="left")
    axes[-1, 0].set_xlabel("ms of virtual time")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
