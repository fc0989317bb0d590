"""Traces of block events: reading them, and what follows from them without any policy.

The format is the one of ``lms_trace_start`` (lms.h). A recording marks the beginning of every iteration by a block of
:data:`MARKER_BYTES` that is allocated and freed at once; the marks are taken out of the events while reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
#: Bytes of the block that marks the beginning of an iteration: a size that no tensor of the models has.
MARKER_BYTES = 1021 * PAGE

BEGIN, END, ALLOCATE, READ, WRITE, FREE = range(6)
_KINDS = {"b": BEGIN, "e": END, "a": ALLOCATE, "r": READ, "w": WRITE, "f": FREE}


class TraceError(ValueError):
    """A trace that cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class Trace:
    """Events in program order, as columns of equal length.

    Blocks are numbered from 0 in order of their first event and never reused; ``block`` is -1 and ``nbytes`` 0 for the
    begin and end of an operation. ``iterations`` holds the index of the first event of each iteration and, as its last
    element, the number of events; what comes before the first belongs to none.
    """

    name: str
    kind: NDArray[np.uint8]
    time: NDArray[np.int64]  # ns
    thread: NDArray[np.int32]
    block: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    iterations: NDArray[np.int64]

    @property
    def blocks(self) -> int:
        """How many different blocks appear."""
        return int(self.block.max(initial=-1)) + 1

    def live_bytes(self) -> NDArray[np.int64]:
        """Bytes of the blocks that live after each event."""
        change = np.where(self.kind == ALLOCATE, self.nbytes, 0) - np.where(self.kind == FREE, self.nbytes, 0)
        return np.cumsum(change)

    def iteration_of(self) -> NDArray[np.int64]:
        """The iteration (from 0) of every event, -1 before the first."""
        return np.searchsorted(self.iterations[:-1], np.arange(len(self.kind)), side="right") - 1


def read(path: Path) -> Trace:
    """Reads a trace file.

    :raises TraceError: a line is not one of the format's, or refers to a block that is not alive.
    """
    kinds: list[int] = []
    times: list[int] = []
    threads: list[int] = []
    ids: list[int] = []
    sizes: list[int] = []
    starts: list[int] = []
    number: dict[int, int] = {}
    thread_number: dict[str, int] = {}
    size_of: dict[int, int] = {}
    markers: set[int] = set()
    with path.open() as lines:
        for line_number, line in enumerate(lines, 1):
            fields = line.split()
            try:
                kind = _KINDS[fields[0]]
                time = int(fields[1])
                thread = thread_number.setdefault(fields[2], len(thread_number))
                block, nbytes = -1, 0
                if kind >= ALLOCATE:
                    name = int(fields[3])
                    if kind == ALLOCATE:
                        nbytes = int(fields[4])
                        if nbytes == MARKER_BYTES:
                            markers.add(name)
                            starts.append(len(kinds))
                            continue
                        size_of[name] = nbytes
                    elif name in markers:
                        continue
                    nbytes = size_of[name] if kind != FREE else size_of.pop(name)
                    block = number.setdefault(name, len(number))
            except (LookupError, ValueError) as error:
                raise TraceError(f"{path}:{line_number}: not an event of the trace format: {line.strip()!r}") from error
            kinds.append(kind)
            times.append(time)
            threads.append(thread)
            ids.append(block)
            sizes.append(nbytes)
    if not starts:
        raise TraceError(f"{path}: no iteration is marked: record it with `python -m lmsreplay record`")
    return Trace(
        name=path.stem,
        kind=np.array(kinds, np.uint8),
        time=np.array(times, np.int64),
        thread=np.array(threads, np.int32),
        block=np.array(ids, np.int64),
        nbytes=np.array(sizes, np.int64),
        iterations=np.array([*starts, len(kinds)], np.int64),
    )
