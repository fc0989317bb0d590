"""Shows the processes of this user that use LMS, live.

It reads the memory in which their pagers count, so that watching costs them nothing, and it shows every process,
whatever framework it uses and wherever that is installed. A program that closes all its descriptors is not found. Of
those that share a budget it shows also processes in other containers and of other users, as far as they meet in the same directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from . import _ledger, _sizes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SUMMARY = "show the processes that use LMS"

_LONGEST_S = 24 * 3600  # of an interval
_PAGE = "/memfd:lms-statistics"
_MOST_BYTES = 1 << 18  # of a page: two of the system's, which may have 64 KiB each


class Sample(NamedTuple):
    """What a pager has counted until some time."""

    pid: int
    device: str
    values: dict[str, int]  # statistics by name, in bytes and nanoseconds
    seconds: float
    command: str | None = None  # None: it has to be looked up
    budget: str | None = None  # that it shares


class Row(NamedTuple):
    """A pager, and what it did between two samples. Sizes in bytes, rates in bytes a second."""

    pid: int
    command: str
    device: str
    limit: int
    resident: int
    allocated: int
    away: int
    in_rate: float
    out_rate: float
    stall: float  # seconds that threads waited for copies, per second; more than 1 if several did
    budget: str | None  # the name of the one that it shares
    share: int  # of it
    wait: float  # seconds that threads waited for others to give, per second


def samples(proc: str = "/proc") -> dict[tuple[int, str], Sample]:
    """The pagers of this user's processes, by process and descriptor: two frameworks may each have one for the CPU.

    And those of others who share a budget, by process and place in its ledger.
    """
    found = {}
    sharers = {sharer.page or (sharer.budget, sharer.place): sharer for sharer in _ledger.sharers()}
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        for descriptor, page, sample in _samples_of(os.path.join(proc, str(pid)), pid):
            sharer = sharers.pop(page, None)
            budget = _unnamed(sample) if sharer is None else _plain_text(sharer.budget)
            found[pid, descriptor] = sample._replace(budget=budget)
    for sharer in sharers.values():
        found[sharer.pid, f"{sharer.budget}:{sharer.place}"] = _of_sharer(sharer)
    return found


def _unnamed(sample: Sample) -> str | None:
    """What a budget is called of which the ledger is elsewhere: its size."""
    nbytes = sample.values.get("share.budget_bytes", 0)
    return f"of {_sizes.text(nbytes)}" if nbytes else None


def _of_sharer(sharer: _ledger.Sharer) -> Sample:
    values = {
        "limit_bytes": sharer.allowed,
        "resident_bytes.current": sharer.resident,
        "allocated_bytes.current": sharer.allocated,
        "away_bytes.current": sharer.away,
        "in.bytes": sharer.in_bytes,
        "out.bytes": sharer.out_bytes,
        "share.bytes": sharer.allowed,
        "share.wait_ns": sharer.wait_ns,
    }
    device = sharer.budget.split("-")[0]
    command, budget = _plain_text(sharer.command), _plain_text(sharer.budget)
    return Sample(sharer.pid, device, values, time.monotonic(), command, budget)


def _samples_of(process: str, pid: int) -> Iterator[tuple[str, int, Sample]]:
    folder = os.path.join(process, "fd")
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        if os.stat(process).st_uid != os.getuid():
            return
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError, ValueError):
                if os.readlink(path).startswith(_PAGE):
                    with open(path, "rb") as file:
                        page, sample = os.fstat(file.fileno()).st_ino, _read(file.read(_MOST_BYTES))
                    if sample.pid == pid:  # and not its parent's
                        yield name, page, sample


def _read(page: bytes) -> Sample:
    """What a page says; statistics_page.h describes it.

    :raises ValueError: it is not such a page.
    """
    lines = page[: page.index(b"\0")].decode().splitlines()
    (version, pid, device), places = (line.partition(" ")[2] for line in lines[:3]), lines[3:]
    if version != "1":
        raise ValueError(f"version {version}")
    values = {}
    for name, _, place in (line.partition(" ") for line in places):
        values[name] = int.from_bytes(page[int(place) : int(place) + 8], sys.byteorder)
    return Sample(int(pid), device, values, time.monotonic())


def rows(before: dict[tuple[int, str], Sample], after: dict[tuple[int, str], Sample]) -> list[Row]:
    """A row for every pager of `after`; what was not there before has counted from 0."""
    result = []
    for key, sample in after.items():
        earlier, now = before.get(key), sample.values
        elapsed = sample.seconds - earlier.seconds if earlier is not None else 0.0

        def rate(
            name: str, earlier: Sample | None = earlier, sample: Sample = sample, elapsed: float = elapsed
        ) -> float:
            if earlier is None or name not in sample.values:  # another release's
                return 0.0
            return (sample.values[name] - earlier.values[name]) / max(elapsed, 1e-9)

        result.append(
            Row(
                sample.pid,
                _command(sample.pid) if sample.command is None else sample.command,
                sample.device,
                now["limit_bytes"],
                now["resident_bytes.current"],
                now["allocated_bytes.current"],
                now["away_bytes.current"],
                rate("in.bytes"),
                rate("out.bytes"),
                rate("stall_ns") / 1e9,
                sample.budget,
                now.get("share.bytes", 0),
                rate("share.wait_ns") / 1e9,
            )
        )
    return result


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    return _plain_text(" ".join([os.path.basename(words[0]), *words[1:]]))


def _plain_text(text: str) -> str:
    # A whole program may be an argument, with line ends and what terminals obey.
    text = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(text.split())


_TITLES = (
    "PID",
    "DEVICE",
    "LIMIT",
    "RESIDENT",
    "ALLOCATED",
    "AWAY",
    "IN/s",
    "OUT/s",
    "STALL",
    "BUDGET",
    "SHARE",
    "WAIT",
)
_TITLES += ("COMMAND",)


def _cells(row: Row) -> tuple[str, ...]:
    sizes = (row.limit, row.resident, row.allocated, row.away, int(row.in_rate), int(row.out_rate))
    shared = ("-", "-", "-") if row.budget is None else (row.budget, _sizes.text(row.share), f"{row.wait:.0%}")
    return (str(row.pid), row.device, *map(_sizes.text, sizes), f"{row.stall:.0%}", *shared, row.command)


def _plain(found: list[Row]) -> str:
    table = [_TITLES, *map(_cells, found)]
    widths = [max(map(len, column)) for column in zip(*table)][:-1]  # noqa: B905  Python 3.7 has no strict
    return "\n".join("  ".join([*map(str.rjust, line, widths), line[-1]]) for line in table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks; 1")
    parser.add_argument("--once", action="store_true", help="print one table, of the next interval, and end")
    parser.add_argument(
        "--json", action="store_true", help="with --once: for programs; sizes in bytes, rates per second"
    )


def main(options: argparse.Namespace) -> None:
    if not 0 < options.interval <= _LONGEST_S:
        options.parser.error("--interval has to be more than 0, and at most a day")
    if options.json and not options.once:
        options.parser.error("--json goes with --once")
    with contextlib.suppress(KeyboardInterrupt):
        if options.once:
            found = next(_looks(options.interval))
            print(json.dumps([row._asdict() for row in found]) if options.json else _plain(found))
        else:
            _watch(options.interval)


def _looks(interval: float) -> Iterator[list[Row]]:
    before = samples()
    while True:
        time.sleep(interval)
        after = samples()
        yield rows(before, after)
        before = after


def _watch(interval: float) -> None:
    try:
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        for found in _looks(interval):
            print(_plain(found), end="\n\n", flush=True)
        return
    with Live(screen=sys.stdout.isatty(), auto_refresh=False) as live:
        for found in _looks(interval):
            table = Table(*_TITLES, title="Large Model Support")
            for column in table.columns[:-1]:
                column.justify = "right"
                column.no_wrap = True
            table.columns[-1].overflow = "ellipsis"
            table.columns[-1].no_wrap = True
            for row in found:
                table.add_row(*map(Text, _cells(row)))  # as it is: a command may look like markup
            live.update(table, refresh=True)
