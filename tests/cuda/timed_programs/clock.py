"""Cases of virtual time, each in a process of its own: clock.py CASE. The machine is test_clock.py's: a byte takes a
nanosecond in the memory and on the way in, two on the way out.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

KIB = 1 << 10
MIB = 1 << 20
NOT_READY = 600

cuda = ctypes.CDLL("libcuda.so.1")
cuda.sim_now.restype = c_uint64
cuda.sim_next_kernel.argtypes = [ctypes.c_char_p, c_double, ctypes.c_char_p, c_uint64]
nothing = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


def now() -> int:
    return int(cuda.sim_now())


def stream() -> c_void_p:
    made = c_void_p()
    call("cuStreamCreate", byref(made), c_uint(1))
    return made


def event() -> c_void_p:
    made = c_void_p()
    call("cuEventCreate", byref(made), c_uint(0))
    return made


def device_memory(nbytes: int) -> c_uint64:
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
    return address


def host_memory(nbytes: int) -> c_void_p:
    address = c_void_p()
    call("cuMemHostAlloc", byref(address), c_size_t(nbytes), c_uint(0))
    ctypes.memset(address, 7, nbytes)
    return address


def copy_in(to: c_uint64, source: c_void_p, nbytes: int, on: c_void_p) -> None:
    call("cuMemcpyHtoDAsync_v2", to, source, c_size_t(nbytes), on)


def copy_out(to: c_void_p, source: c_uint64, nbytes: int, on: c_void_p) -> None:
    call("cuMemcpyDtoHAsync_v2", to, source, c_size_t(nbytes), on)


def kernel(flop: float, nbytes: int, on: c_void_p) -> None:
    cuda.sim_next_kernel(b"kernel", flop, b"flops.float32", nbytes)
    call("cuLaunchHostFunc", on, nothing, None)


def passes(begin: int, nanoseconds: int) -> None:
    assert now() - begin == nanoseconds, (now() - begin, nanoseconds)


def a_copy_takes_its_latency_and_its_bytes() -> None:
    device, host, on = device_memory(MIB), host_memory(MIB), stream()
    begin = now()
    copy_in(device, host, MIB, on)
    passes(begin, 0)  # the host goes on
    assert cuda.cuStreamQuery(on) == NOT_READY
    call("cuStreamSynchronize", on)
    passes(begin, 1_000 + MIB)
    begin = now()
    copy_out(host, device, MIB, on)
    call("cuStreamSynchronize", on)
    passes(begin, 1_000 + 2 * MIB)


def copies_overlap_in_two_directions_only() -> None:
    device, host, first, second = device_memory(2 * MIB), host_memory(2 * MIB), stream(), stream()
    begin = now()
    copy_in(device, host, MIB, first)
    copy_out(host, device, MIB, second)
    call("cuCtxSynchronize")
    passes(begin, 1_000 + 2 * MIB)
    begin = now()
    copy_in(device, host, MIB, first)
    copy_in(device, host, MIB, second)
    call("cuCtxSynchronize")
    passes(begin, 2 * (1_000 + MIB))


def a_kernel_takes_what_lasts_longer() -> None:
    on = stream()
    begin = now()
    kernel(5e3, 100, on)
    passes(begin, 3_000)  # the framework's
    call("cuStreamSynchronize", on)
    passes(begin, 3_000 + 2_000 + 5_000)
    begin = now()
    kernel(5e3, 9_000, on)
    call("cuStreamSynchronize", on)
    passes(begin, 3_000 + 2_000 + 9_000)


def a_stream_waits_for_an_event() -> None:
    first, second, start, end = stream(), stream(), event(), event()
    begin = now()
    call("cuEventRecord", start, first)
    kernel(50e3, 0, first)
    call("cuEventRecord", end, first)
    call("cuStreamWaitEvent", second, end, c_uint(0))
    device, host = device_memory(4 * KIB), host_memory(4 * KIB)
    copy_in(device, host, KIB, second)
    assert cuda.cuEventQuery(end) == NOT_READY
    call("cuStreamSynchronize", second)
    passes(begin, 3_000 + 2_000 + 50_000 + 1_000 + KIB)
    call("cuEventQuery", end)
    passed = c_float()
    call("cuEventElapsedTime", byref(passed), start, end)
    assert abs(passed.value - 55e-3) < 1e-6, passed.value  # the host was at work when it was recorded


def what_is_ready_overtakes_what_waits() -> None:
    device, host, first, second, third = device_memory(MIB), host_memory(MIB), stream(), stream(), stream()
    end = event()
    begin = now()
    kernel(500e3, 0, first)
    call("cuEventRecord", end, first)
    call("cuStreamWaitEvent", second, end, c_uint(0))
    copy_in(device, host, KIB, second)
    copy_in(device, host, KIB, third)
    call("cuStreamSynchronize", third)
    passes(begin, 3_000 + 1_000 + KIB)
    call("cuStreamSynchronize", second)
    passes(begin, 3_000 + 2_000 + 500_000 + 1_000 + KIB)


class Properties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDescription(ctypes.Structure):
    _fields_ = (("location_type", c_int), ("location", c_int), ("flags", c_int))


def reserve(handles: int) -> c_uint64:
    """Mapped memory of so many handles, without access."""
    address, size = c_uint64(), 2 * MIB
    call("cuMemAddressReserve", byref(address), c_size_t(handles * size), c_size_t(0), c_uint64(0), c_uint64(0))
    for index in range(handles):
        handle, properties = c_uint64(), Properties(type=1, location_type=1)
        call("cuMemCreate", byref(handle), c_size_t(size), byref(properties), c_uint64(0))
        call("cuMemMap", c_uint64(address.value + index * size), c_size_t(size), c_size_t(0), handle, c_uint64(0))
    return address


def give_access(address: c_uint64, handles: int) -> None:
    access = AccessDescription(location_type=1, flags=3)
    call("cuMemSetAccess", address, c_size_t(handles * 2 * MIB), byref(access), c_size_t(1))


def a_range_costs_by_its_handles() -> None:
    address = reserve(3)
    begin = now()
    give_access(address, 3)
    passes(begin, 3 * 10_000)
    begin = now()
    call("cuMemUnmap", address, c_size_t(3 * 2 * MIB))
    passes(begin, 3 * 20_000)


def without_work_only_numbers_move() -> None:
    device, host, on = device_memory(MIB), host_memory(MIB), stream()
    begin = now()
    copy_in(device, host, MIB, on)
    copy_in(device, host, KIB, on)
    call("cuStreamSynchronize", on)
    passes(begin, 2 * 1_000 + MIB + KIB)
    ctypes.memset(host, 0, MIB)
    copy_out(host, device, 4 * KIB, on)
    call("cuStreamSynchronize", on)
    assert ctypes.string_at(host, 4 * KIB) == b"\7" * KIB + b"\0" * 3 * KIB


def what_goes_to_another_device_goes_out() -> None:
    device, on = device_memory(MIB), stream()
    other = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(other), c_int(1))
    call("cuCtxSetCurrent", other)
    there = device_memory(MIB)
    call("cuCtxSetCurrent", context)
    begin = now()
    call("cuMemcpyDtoDAsync_v2", there, device, c_size_t(MIB), on)
    call("cuStreamSynchronize", on)
    passes(begin, 1_000 + 2 * MIB)


def collectives_go_by_the_link() -> None:
    nccl, communicators = ctypes.CDLL("libnccl.so.2"), (c_void_p * 2)()
    assert nccl.ncclCommInitAll(communicators, c_int(2), None) == 0
    contexts, parts, streams = [context, c_void_p()], [], []
    call("cuDevicePrimaryCtxRetain", byref(contexts[1]), c_int(1))
    for each in contexts:
        call("cuCtxSetCurrent", each)
        parts.append(device_memory(MIB))
        streams.append(stream())
    begin = now()
    assert nccl.ncclGroupStart() == 0
    for part, communicator, on in zip(parts, communicators, streams, strict=True):
        words = (part, part, c_size_t(MIB // 4), c_int(7), c_int(0), c_void_p(communicator), on)  # floats, to be added
        assert nccl.ncclAllReduce(*words) == 0
    assert nccl.ncclGroupEnd() == 0
    call("cuStreamSynchronize", streams[1])
    passes(begin, 1_000 + 2 * MIB)  # half of it to each, and the sums back


def all_reduce_after(flop: float, rank: int, name: bytes) -> int:
    """As one of two processes: adds up a MiB of ones after a kernel; how long that took."""

    class UniqueId(ctypes.Structure):
        _fields_ = (("name", ctypes.c_char * 128),)

    nccl, communicator = ctypes.CDLL("libnccl.so.2"), c_void_p()
    nccl.ncclCommInitRank.argtypes = [c_void_p, c_int, UniqueId, c_int]
    assert nccl.ncclCommInitRank(byref(communicator), 2, UniqueId(name), rank) == 0
    part, host, on = device_memory(MIB), host_memory(MIB), stream()
    call("cuMemsetD8_v2", part, ctypes.c_ubyte(1), c_size_t(MIB))
    call("cuCtxSynchronize")
    begin = now()
    kernel(flop, 0, on)
    words = (part, part, c_size_t(MIB), c_int(1), c_int(0), communicator, on)  # bytes, to be added
    assert nccl.ncclAllReduce(*words) == 0
    call("cuStreamSynchronize", on)
    passed = now() - begin
    copy_out(host, part, MIB, on)
    call("cuStreamSynchronize", on)
    assert ctypes.string_at(host, MIB) == b"\2" * MIB
    return passed


# The longer kernel; then half of it to each, and the sums back.
AFTER_THE_LAST = 3_000 + 2_000 + 5_000_000 + 1_000 + 2 * MIB


def a_collective_begins_with_its_last_process() -> None:
    for number, (mine, theirs) in enumerate(((1e6, 5e6), (5e6, 1e6))):
        name = f"/simulated-nccl-clock-{os.getpid()}-{number}"
        kernel(1e9, 0, stream())  # this process is long past the other when they meet
        call("cuCtxSynchronize")
        with subprocess.Popen([sys.executable, __file__, "the_other_process", name, str(theirs)]) as other:
            passed = all_reduce_after(mine, 0, name.encode())
        assert other.returncode == 0
        assert passed == AFTER_THE_LAST, passed


def the_other_process() -> None:
    passed = all_reduce_after(float(sys.argv[3]), 1, sys.argv[2].encode())
    assert passed == AFTER_THE_LAST, passed


def in_threads(*functions: Callable[[], None]) -> list[int]:
    """Runs each in a thread of its own, all at once; how long each takes on its own clock."""
    passed = [-1] * len(functions)

    def run(index: int, function: Callable[[], None]) -> None:
        call("cuCtxSetCurrent", context)
        begin = now()
        function()
        passed[index] = now() - begin

    threads = [threading.Thread(target=run, args=one) for one in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return passed


def threads_have_clocks_of_their_own() -> None:
    first, second = stream(), stream()
    kernel(1e6, 0, first)

    def wait() -> None:
        call("cuStreamSynchronize", first)

    def work() -> None:
        for _ in range(5):
            kernel(0, 0, second)

    begin = now()
    waited, worked = in_threads(wait, work)
    assert waited == 2_000 + 1_000_000 and worked == 5 * 3_000, (waited, worked)
    passes(begin, waited)  # who waits for a thread is brought up to its clock


def threads_call_the_driver_one_at_a_time() -> None:
    begin = now()
    passed = in_threads(*[lambda: give_access(reserve(3), 3)] * 2)
    assert max(passed) == 2 * 30_000, passed
    assert min(passed) >= 30_000, passed
    passes(begin, max(passed))


def threads_that_are_late_are_waited_for() -> None:
    on = stream()
    kernel(1e6, 0, on)

    def wait() -> None:
        call("cuStreamSynchronize", on)
        time.sleep(0.05)  # who waits for this thread looks again meanwhile

    begin = now()
    in_threads(wait)
    passes(begin, 2_000 + 1_000_000)


def the_table_has_every_event() -> None:
    device, host, on = device_memory(MIB), host_memory(MIB), stream()
    copy_in(device, host, MIB, on)
    call("cuStreamSynchronize", on)
    kernel(5e3, 100, on)
    call("cuStreamSynchronize", on)
    call("sim_write_timeline", sys.argv[2].encode())


if __name__ == "__main__":
    call("cuInit", c_uint(0))
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
    call("cuCtxSetCurrent", context)
    globals()[sys.argv[1]]()
