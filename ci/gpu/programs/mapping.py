"""Times the driver's virtual memory management, through its C interface alone: no torch in this program.

Usage: mapping.py ROUNDS BYTES LOAD_BYTES. For a range of BYTES and every size of physical chunk: creating the chunks,
mapping them, setting access to the whole range, unmapping the range, and releasing the chunks; with the device idle, then
with a stream that copies LOAD_BYTES on the device, over and over, all the while and for some time more. Answers with
microseconds, each the time of the whole range, and in which share of the rounds the stream was still busy after a
step: a step that takes long and leaves an idle device behind has waited for it. A call through ctypes costs about one
microsecond.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

from answer import answer

_MIB = 1 << 20
CHUNKS = (2, 4, 8, 16, 32, 64)  # MiB
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3  # CUmemAllocationType, CUmemLocationType, CUmemAccess_flags
_NON_BLOCKING, _NOT_READY = 1, 600
_CALIBRATION, _MOST_COPIES = 8, 900  # copies; with more than about a thousand in its queue the driver waits
_MARGIN, _LEAST = 4.0, 5000.0  # the load lasts this many times what the steps take when idle, and microseconds more


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Flags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", Flags),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


_driver = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    """Calls a function of the driver. Raises RuntimeError with CUDA's own name of the error."""
    result = getattr(_driver, name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        _driver.cuGetErrorName(result, ctypes.byref(text))
        raise RuntimeError(f"{name} failed: {(text.value or b'unknown error').decode()} ({result})")


Size, Address, Handle = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64


class Load:
    """A stream that copies on the device for about as long as it is told to."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.stream = ctypes.c_void_p()
        self.source, self.target = Address(), Address()
        call("cuStreamCreate", ctypes.byref(self.stream), _NON_BLOCKING)
        for address in (self.source, self.target):
            call("cuMemAlloc_v2", ctypes.byref(address), Size(nbytes))
        self._round(1)
        self.microseconds = timed(lambda: self._round(_CALIBRATION)) / _CALIBRATION

    def _round(self, copies: int) -> None:
        self._copy(copies)
        self.stop()

    def _copy(self, count: int) -> None:
        for _ in range(count):
            call("cuMemcpyDtoDAsync_v2", self.target, self.source, Size(self.nbytes), self.stream)

    def start(self, microseconds: float) -> None:
        self._copy(min(_MOST_COPIES, 1 + int(microseconds / self.microseconds)))

    def is_busy(self) -> bool:
        return bool(_driver.cuStreamQuery(self.stream) == _NOT_READY)

    def stop(self) -> None:
        call("cuStreamSynchronize", self.stream)


def timed(work: Callable[[], object]) -> float:
    """Microseconds."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e6


def steps_of(base: int, nbytes: int, chunk: int) -> dict[str, Callable[[], None]]:
    """What is timed, in this order, on one range."""
    place = Location(_DEVICE, 0)
    properties = Properties(type=_PINNED, location=place)
    access = Access(place, _READ_WRITE)
    handles = [Handle() for _ in range(nbytes // chunk)]

    def create() -> None:
        for handle in handles:
            call("cuMemCreate", ctypes.byref(handle), Size(chunk), ctypes.byref(properties), ctypes.c_uint64(0))

    def map_all() -> None:
        for index, handle in enumerate(handles):
            call("cuMemMap", Address(base + index * chunk), Size(chunk), Size(0), handle, ctypes.c_uint64(0))

    def open_access() -> None:
        call("cuMemSetAccess", Address(base), Size(nbytes), ctypes.byref(access), Size(1))

    def unmap() -> None:
        call("cuMemUnmap", Address(base), Size(nbytes))

    def release() -> None:
        for handle in handles:
            call("cuMemRelease", handle)

    return {"create": create, "map": map_all, "set_access": open_access, "unmap": unmap, "release": release}


def main(rounds: int, nbytes: int, load_bytes: int) -> None:
    device, context, base = ctypes.c_int(), ctypes.c_void_p(), Address()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    alignment = Size(CHUNKS[-1] * _MIB)
    call("cuMemAddressReserve", ctypes.byref(base), Size(nbytes), alignment, Address(0), ctypes.c_uint64(0))
    load = Load(load_bytes)
    rows: list[dict[str, object]] = []
    for chunk in (size * _MIB for size in CHUNKS if size * _MIB <= nbytes):
        steps = steps_of(base.value or 0, nbytes, chunk)
        about = {"bytes": nbytes, "chunk_bytes": chunk}
        for work in steps.values():  # warms up
            work()
        idle = [{name: timed(work) for name, work in steps.items()} for _ in range(rounds)]
        rows.append({**about, "device_busy": False, "microseconds": transposed(idle)})
        longest = max(sum(sample.values()) for sample in idle)
        samples: list[dict[str, float]] = []
        busy_after: list[dict[str, float]] = []
        for _ in range(rounds):
            load.start(_MARGIN * longest + _LEAST)
            sample: dict[str, float] = {}
            after: dict[str, float] = {}
            for name, work in steps.items():
                sample[name] = timed(work)
                after[name] = load.is_busy()
            load.stop()
            samples.append(sample)
            busy_after.append(after)
        still = {name: sum(values) / rounds for name, values in transposed(busy_after).items()}
        rows.append({**about, "device_busy": True, "microseconds": transposed(samples), "still_busy": still})
    answer({"rows": rows})


def transposed(samples: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
