"""What one call of the driver's virtual memory management costs, and what it costs a thread that launches kernels.

Usage: calls.py ROUNDS BYTES LOAD LAUNCH HANDLE_BYTES... LOAD (load.py) keeps the device busy, LAUNCH is the small
operation that the main thread launches. For handles of each size, BYTES of them a round, each call alone: with the
device idle (`idle`), beside the load (`busy`), from another thread while the main thread launches (`thread`), and from two
threads at once (`both`). Answers with microseconds a call, by round their median and their longest, and with those of a
launch on the main thread alone (`alone`) and while the other one changes mappings (`changes`).

Two threads share Python's interpreter too, which costs both of them time. So there is a `control`: the other thread makes
calls of about the lengths seen on an idle device that ask nothing of the driver. The driver's part is what `thread` and
`changes` are longer than that.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import load
from answer import answer
from driver import MIB, Handle, Memory, Size, call, reserve, timed, use_device

_WARM_UP = 100  # launches
_QUEUE = 100  # launches after which the device may catch up: a full queue makes a launch wait
_SWITCH = 1e-5  # seconds after which one thread leaves Python to the other; by default as long as many calls
_SPUN, _CALIBRATION = 64 * MIB, MIB  # bytes: at most, about a millisecond or two; and to learn how fast that is

Samples = dict[str, list[float]]  # microseconds of each call, by what was called


class Handles:
    """A round: the calls of the pager, one for each handle, in this order."""

    def __init__(self, memory: Memory, nbytes: int, count: int) -> None:
        self._memory = memory
        self._nbytes = nbytes
        self._base = reserve(nbytes * count, nbytes)
        self._handles = [Handle() for _ in range(count)]

    def change(self) -> Samples:
        """Creates, maps, unmaps and releases all of it."""
        memory, nbytes = self._memory, self._nbytes
        placed = [(self._base + index * nbytes, handle) for index, handle in enumerate(self._handles)]
        return {
            "create": [timed(lambda h=handle: memory.create(h, nbytes)) for _, handle in placed],
            "map": [timed(lambda a=at, h=handle: memory.map(a, nbytes, h)) for at, handle in placed],
            "set_access": [timed(lambda a=at: memory.set_access(a, nbytes)) for at, _ in placed],
            "unmap": [timed(lambda a=at: memory.unmap(a, nbytes)) for at, _ in placed],
            "release": [timed(lambda h=handle: memory.release(h)) for _, handle in placed],
        }


class Spin:
    """Work outside of Python that takes about as long as it is told to, and asks nothing of the driver."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_SPUN)
        self._fill = ctypes.CDLL(None).memset
        self._spin(_SPUN)
        self._bytes_a_microsecond = _CALIBRATION / min(timed(lambda: self._spin(_CALIBRATION)) for _ in range(9))

    def like(self, samples: Samples) -> Samples:
        """As many calls, each about as long; what they really took."""
        return {name: [self._timed(microseconds) for microseconds in each] for name, each in samples.items()}

    def _timed(self, microseconds: float) -> float:
        nbytes = min(_SPUN, int(microseconds * self._bytes_a_microsecond))
        return timed(lambda: self._spin(nbytes))

    def _spin(self, nbytes: int) -> None:
        self._fill(self._buffer, 0, Size(nbytes))


class Launches:
    """The main thread's launches."""

    def __init__(self, operation: load.Operation) -> None:
        self._operation = operation
        self.microseconds(_WARM_UP)

    def microseconds(self, count: int) -> list[float]:
        return list(self._until(lambda done: done >= count))

    def beside(self, work: Callable[[], object]) -> list[float]:
        """Those while another thread does the work. What that raises is raised here."""
        launching = Event()

        def run() -> None:
            use_device()
            launching.wait()
            work()

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(run)

            def is_over(done: int) -> bool:
                launching.set()
                return other.done()

            try:
                found = list(self._until(is_over))
            finally:
                launching.set()
            other.result()
        return found

    def _until(self, is_over: Callable[[int], bool]) -> Iterator[float]:
        stream = ctypes.c_void_p(self._operation.stream)
        done = 0
        with self._operation.on_stream():
            while not is_over(done) or done == 0:
                yield timed(self._operation.enqueue)
                done += 1
                if done % _QUEUE == 0:
                    call("cuStreamSynchronize", stream)
            call("cuStreamSynchronize", stream)


def summed(rounds: list[Samples]) -> dict[str, dict[str, list[float]]]:
    """By round, the median and the longest call."""
    return {
        name: {
            "median": [statistics.median(one[name]) for one in rounds],
            "longest": [max(one[name]) for one in rounds],
        }
        for name in rounds[0]
    }


def from_two_threads(one: Handles, other: Handles) -> Samples:
    """The calls of this thread while another changes its own."""
    both = Barrier(2)

    def run(own: Handles) -> Samples:
        use_device()
        both.wait()
        return own.change()

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(run, other)
        found = run(one)
        second.result()
    return found


def measure(
    handles: Handles, others: Handles, busy: load.Load, launches: Launches, spin: Spin, rounds: int
) -> dict[str, Any]:
    """All of it for handles of one size; `others` are as many."""
    handles.change()  # warms up
    idle = [handles.change() for _ in range(rounds)]
    longest = max(sum(map(sum, one.values())) for one in idle)
    beside = []
    still_busy = 0
    for _ in range(rounds):
        busy.start(longest)
        beside.append(handles.change())
        still_busy += busy.is_busy()
        busy.stop()
    changed: list[Samples] = []
    spun: list[Samples] = []
    launched: dict[str, list[Samples]] = {"alone": [], "control": [], "changes": []}
    for turn in range(rounds):
        launched["control"].append({"launch": launches.beside(lambda turn=turn: spun.append(spin.like(idle[turn])))})
        launched["changes"].append({"launch": launches.beside(lambda: changed.append(handles.change()))})
        count = len(launched["changes"][-1]["launch"])  # as many, for the longest of them to be comparable
        launched["alone"].append({"launch": launches.microseconds(count)})
    together = [from_two_threads(handles, others) for _ in range(rounds)]
    situations = {"idle": idle, "busy": beside, "thread": changed, "control": spun, "both": together}
    return {
        "calls": {name: summed(found) for name, found in situations.items()},
        "launch": {name: summed(found)["launch"] for name, found in launched.items()},
        "still_busy": still_busy / rounds,
    }


def main(rounds: int, nbytes: int, busy: str, launch: str, sizes: list[int]) -> None:
    sys.setswitchinterval(_SWITCH)
    device = use_device()
    memory, second = Memory(device), Memory(device)
    load_, launches, spin = load.Load(load.make(busy)), Launches(load.make(launch)), Spin()
    rows = []
    for size in sizes:
        handles, others = (Handles(each, size, nbytes // size) for each in (memory, second))
        rows.append({"handle_bytes": size, **measure(handles, others, load_, launches, spin, rounds)})
    calls, refused = memory.calls + second.calls, memory.refused + second.refused
    answer({"rows": rows, "memory": memory.flags, "calls": calls, "refused": refused})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], [int(size) for size in sys.argv[5:]])
