"""Times the driver's virtual memory management, as the pager uses it.

Usage: mapping.py ROUNDS BYTES LOAD... For a range of BYTES and every size of physical chunk: creating the chunks,
mapping them, setting access to the whole range, unmapping the range, and releasing the chunks; with the device idle, then
with each LOAD (load.py) running all the while and for some time more. Answers with microseconds, each the time of the
whole range, and in which share of the rounds the load was still running after a step: a step that takes long and
leaves an idle device behind has waited for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import load
from answer import answer
from driver import MIB, Handle, Memory, reserve, timed, use_device

CHUNKS = (2, 4, 8, 16, 32, 64)  # MiB


def steps_of(memory: Memory, base: int, nbytes: int, chunk: int) -> dict[str, Callable[[], None]]:
    """What is timed, in this order, on one range."""
    handles = [Handle() for _ in range(nbytes // chunk)]

    def create() -> None:
        for handle in handles:
            memory.create(handle, chunk)

    def map_all() -> None:
        for index, handle in enumerate(handles):
            memory.map(base + index * chunk, chunk, handle)

    def open_access() -> None:
        memory.set_access(base, nbytes)

    def unmap() -> None:
        memory.unmap(base, nbytes)

    def release() -> None:
        for handle in handles:
            memory.release(handle)

    return {"create": create, "map": map_all, "set_access": open_access, "unmap": unmap, "release": release}


def main(rounds: int, nbytes: int, kinds: list[str]) -> None:
    memory = Memory(use_device())
    base = reserve(nbytes, CHUNKS[-1] * MIB)
    loads = {kind.partition(":")[0]: load.Load(load.make(kind)) for kind in kinds}
    rows: list[dict[str, object]] = []
    for chunk in (size * MIB for size in CHUNKS if size * MIB <= nbytes):
        steps = steps_of(memory, base, nbytes, chunk)
        about = {"bytes": nbytes, "chunk_bytes": chunk}
        for work in steps.values():  # warms up
            work()
        idle = [{name: timed(work) for name, work in steps.items()} for _ in range(rounds)]
        rows.append({**about, "load": None, "microseconds": transposed(idle)})
        longest = max(sum(sample.values()) for sample in idle)
        rows += [{**about, "load": kind, **_beside(own, steps, rounds, longest)} for kind, own in loads.items()]
    answer({"rows": rows, "memory": memory.flags, "calls": memory.calls, "refused": memory.refused})


def _beside(own: load.Load, steps: dict[str, Callable[[], None]], rounds: int, idle: float) -> dict[str, object]:
    """The steps, which take `idle` microseconds on an idle device, while the device is busy."""
    samples: list[dict[str, float]] = []
    busy_after: list[dict[str, float]] = []
    for _ in range(rounds):
        own.start(idle)
        sample: dict[str, float] = {}
        after: dict[str, float] = {}
        for name, work in steps.items():
            sample[name] = timed(work)
            after[name] = own.is_busy()
        own.stop()
        samples.append(sample)
        busy_after.append(after)
    still = {name: sum(values) / rounds for name, values in transposed(busy_after).items()}
    return {"microseconds": transposed(samples), "still_busy": still}


def transposed(samples: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
