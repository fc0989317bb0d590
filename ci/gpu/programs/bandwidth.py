"""Times the pager's copies out and in against plain asynchronous copies between the device and pinned memory.

Usage: bandwidth.py BYTES ROUNDS BLOCK_BYTES. BYTES are copied in blocks, ROUNDS times, the four kinds of copies in
turn. Answers with seconds, and checks that the pager moved exactly those bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from answer import answer

_MIN_SIZE = 1 << 20  # bytes
_TOUCHED = 64  # bytes

clock: Callable[[], float] = time.perf_counter  # seconds; where the device is simulated, and time too, another


def _seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = clock()
    work()
    torch.cuda.synchronize()
    return clock() - begin


class Side:
    """Blocks on the device, of the stock allocator or of the pager, and the copies of them that are timed."""

    def __init__(self, count: int, block: int) -> None:
        self.blocks = [torch.empty(block, dtype=torch.uint8, device="cuda") for _ in range(count)]
        self.nbytes = count * block


class Plain(Side):
    def __init__(self, count: int, block: int) -> None:
        super().__init__(count, block)
        self.host = torch.zeros(count, block, dtype=torch.uint8).pin_memory().unbind()

    def out(self) -> None:
        for host, block in zip(self.host, self.blocks, strict=True):
            host.copy_(block, non_blocking=True)

    def back(self) -> None:
        for host, block in zip(self.host, self.blocks, strict=True):
            block.copy_(host, non_blocking=True)


class Paged(Side):
    def __init__(self, count: int, block: int) -> None:
        super().__init__(count, block)
        self.touch = torch.zeros(_TOUCHED, dtype=torch.uint8).pin_memory()
        self.heads = [block[:_TOUCHED] for block in self.blocks]

    def out(self) -> None:
        torch.lms.reclaim("cuda")

    def back(self) -> None:
        # A write of a few bytes: it brings the whole block in, and makes it differ from the host's copy.
        for head in self.heads:
            head.copy_(self.touch, non_blocking=True)


def _moved(what: str, work: Callable[[], object], nbytes: int) -> float:
    before = torch.lms.stats("cuda")[what]
    seconds = _seconds(work)
    moved = torch.lms.stats("cuda")[what] - before
    if moved != nbytes:
        raise SystemExit(f"{what}: the pager moved {moved} bytes, not {nbytes}")
    return seconds


def main(total: int, rounds: int, block: int) -> None:
    count = max(1, total // block)
    plain = Plain(count, block)
    # The policy that moves nothing of its own accord: every byte is moved by what is timed.
    torch.lms.enable("cuda", limit=None, min_size=_MIN_SIZE, policy="lru")
    paged = Paged(count, block)
    for side in (plain, paged):  # warms up; the host store has its memory then, as after a training run's first steps
        side.back()
        side.out()
        side.back()
    seconds: dict[str, list[float]] = {"plain_out": [], "out": [], "plain_in": [], "in": []}
    for _ in range(rounds):
        seconds["plain_out"].append(_seconds(plain.out))
        seconds["out"].append(_moved("out.bytes", paged.out, paged.nbytes))
        seconds["plain_in"].append(_seconds(plain.back))
        seconds["in"].append(_moved("in.bytes", paged.back, paged.nbytes))
    answer({"bytes": plain.nbytes, "seconds": seconds})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
