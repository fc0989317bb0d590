"""Gaps: the spans in which a block is not in use, and may therefore be away. Every schedule is a choice among them.

A block must be resident from a use until the operation that uses it ends, and from its allocation until the outermost
operation around it ends. Between two such spans lies a gap. To evict a block in a gap costs

* its bytes out, unless the host still has a clean copy: the block was evicted before and not written since;
* its bytes in at the end of the gap, unless it ends with the block being freed.

The gaps of one steady iteration describe a schedule that repeats itself: what happens to a block across the end of the
iteration happens across its beginning too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmsreplay.trace import ALLOCATE, BEGIN, END, FREE, READ, WRITE, Trace


@dataclass(frozen=True)
class Gaps:
    """The gaps that end in one iteration, and the memory that it needs if nothing is ever evicted.

    Moments are the block events of the iteration, from 0. A gap spans the moments ``begin … end - 1``; ``begin`` is
    negative when it began in the iteration before, and so is ``last``, the last use before it. ``version`` numbers the contents of a block between two writes: only
    the first eviction of a version writes it out.
    """

    last: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]  # > begin
    nbytes: NDArray[np.int64]
    read: NDArray[np.bool_]  # whether the block is used again after the gap (else it is freed)
    version: NDArray[np.int64]
    written: NDArray[np.int64]  # by version: bytes that its first eviction costs
    made: NDArray[np.int64]  # by version: the moment of the write that made it; 0 when it costs nothing
    live: NDArray[np.int64]  # by moment: bytes of the live blocks that the iteration uses

    def cost(self, evicted: NDArray[np.bool_]) -> tuple[int, int]:
        """Bytes (in, out) per iteration of the schedule that evicts exactly these gaps."""
        versions = np.unique(self.version[evicted])
        return int(self.nbytes[evicted & self.read].sum()), int(self.written[versions].sum())

    def resident(self, evicted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Bytes resident at each moment under that schedule."""
        away = np.zeros(len(self.live) + 1, np.int64)
        for begin, end, nbytes in zip(self.begin[evicted], self.end[evicted], self.nbytes[evicted], strict=True):
            for low, high in spans(int(begin), int(end), len(self.live)):
                away[low] += nbytes
                away[high] -= nbytes
        return self.live - np.cumsum(away[:-1])


def spans(begin: int, end: int, moments: int) -> list[tuple[int, int]]:
    """The moments of a gap as half-open ranges within the iteration."""
    return [(begin, end)] if begin >= 0 else [(begin + moments, moments), (0, end)]


def release_of(trace: Trace) -> NDArray[np.int64]:
    """For each use of a block, the index of the event at which nothing holds the block any more.

    A read or write holds it until its operation ends, an allocation until the outermost operation on the thread ends; a
    use inside another that holds it longer does not shorten that. Other events: their own index.
    """
    release = np.arange(len(trace.kind))
    operations: dict[int, list[list[int]]] = {}  # by thread: for each open operation, the uses it holds
    for i, (kind, thread) in enumerate(zip(trace.kind.tolist(), trace.thread.tolist(), strict=True)):
        open_operations = operations.setdefault(thread, [])
        if kind == BEGIN:
            open_operations.append([])
        elif kind == END:
            if open_operations:
                release[open_operations.pop()] = i
        elif kind != FREE and open_operations:
            open_operations[0 if kind == ALLOCATE else -1].append(i)
    held: dict[int, int] = {}
    for i, (kind, block) in enumerate(zip(trace.kind.tolist(), trace.block.tolist(), strict=True)):
        if kind in (ALLOCATE, READ, WRITE):
            held[block] = release[i] = max(held.get(block, 0), int(release[i]))
    return release


def working_set(trace: Trace) -> int:
    """Bytes of the largest set of blocks that are held at one time: no schedule fits under a smaller limit."""
    release = release_of(trace)
    freed = np.full(trace.blocks, len(trace.kind))
    is_free = trace.kind == FREE
    freed[trace.block[is_free]] = np.flatnonzero(is_free)
    change = np.zeros(len(trace.kind) + 1, np.int64)
    until: dict[int, int] = {}
    for i in np.flatnonzero((trace.kind >= ALLOCATE) & ~is_free).tolist():
        block, nbytes = int(trace.block[i]), int(trace.nbytes[i])
        end = min(int(release[i]), int(freed[block]))
        start = max(i, until.get(block, 0))
        if end > start:
            change[start] += nbytes
            change[end] -= nbytes
            until[block] = end
    # A use outside of any operation holds the block for that moment only.
    single = np.where((release == np.arange(len(release))) & (trace.kind >= ALLOCATE) & ~is_free, trace.nbytes, 0)
    return int((np.cumsum(change[:-1]) + single).max(initial=0))


def same_iteration(trace: Trace, first: int, second: int) -> bool:
    """Whether two iterations (from 0) use memory alike: the same sequence of block events and sizes."""
    columns = []
    for iteration in (first, second):
        span = slice(trace.iterations[iteration], trace.iterations[iteration + 1])
        events = trace.kind[span] >= ALLOCATE
        columns.append((trace.kind[span][events], trace.nbytes[span][events]))
    return all(np.array_equal(a, b) for a, b in zip(*columns, strict=True))


def steady_iteration(trace: Trace) -> int:
    """The last complete iteration (from 0) that is like the one before it.

    :raises ValueError: there is none.
    """
    for iteration in range(len(trace.iterations) - 3, 0, -1):  # the last one lacks what the next one would free
        if same_iteration(trace, iteration - 1, iteration):
            return iteration
    raise ValueError(f"{trace.name}: no iteration is like the one before it; record more of them")


def steady_gaps(trace: Trace, iteration: int) -> Gaps:
    """The gaps of ``iteration`` (from 0), which must be like the one before it.

    :raises ValueError: the two iterations differ, so that neither is steady.
    """
    if iteration < 1 or not same_iteration(trace, iteration - 1, iteration):
        raise ValueError(f"{trace.name}: iteration {iteration + 1} is not like the one before it")
    before, first, stop = (int(trace.iterations[iteration + k]) for k in (-1, 0, 1))
    events = np.flatnonzero(trace.kind >= ALLOCATE)
    start = int(np.searchsorted(events, first))
    moments = int(np.searchsorted(events, stop)) - start
    oldest = int(np.searchsorted(events, before)) - start  # first moment of the iteration before
    released = np.searchsorted(events, release_of(trace)[events], side="right") - start  # first moment of the gap

    rows: list[tuple[int, int, int, int, bool, int]] = []
    versions: dict[int, int] = {}
    written: list[int] = []
    made: list[int] = []
    live = np.zeros(moments + 1, np.int64)
    previous: dict[int, int] = {}
    changed: dict[int, int] = {}
    columns = (trace.kind[events].tolist(), trace.block[events].tolist(), trace.nbytes[events].tolist())
    for event, (kind, block, nbytes) in enumerate(zip(*columns, strict=True)):
        moment = event - start
        if moment >= moments:
            break
        last = previous.get(block)
        if moment >= 0 and last is not None:
            since = max(last, moment - moments)
            for low, high in spans(since, moment, moments):
                live[low] += nbytes
                live[high] -= nbytes
            begin = max(int(released[last + start]), moment - moments)
            if begin < moment:
                change = changed.get(block, oldest - 1)
                # Unwritten for an iteration: the host's copy of it stays clean for ever. Else the place of the write.
                key = change % moments if change >= oldest else -1 - block
                if key not in versions:
                    versions[key] = len(written)
                    written.append(nbytes if change >= oldest else 0)
                    made.append(max(key, 0))
                rows.append((max(last, moment - moments), begin, moment, nbytes, kind != FREE, versions[key]))
        previous[block] = moment
        if kind in (ALLOCATE, WRITE):
            changed[block] = moment
    table = list(zip(*rows, strict=True)) if rows else [(), (), (), (), (), ()]
    return Gaps(
        last=np.array(table[0], np.int64),
        begin=np.array(table[1], np.int64),
        end=np.array(table[2], np.int64),
        nbytes=np.array(table[3], np.int64),
        read=np.array(table[4], np.bool_),
        version=np.array(table[5], np.int64),
        written=np.array(written, np.int64),
        made=np.array(made, np.int64),
        live=np.cumsum(live[:-1]),
    )
