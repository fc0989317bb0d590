"""What goes wrong on a device or its machine: a clear error or the slower way, never wrong data, never a hang."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
from collections.abc import Callable, Iterator

import torch
from common import raises
from cuda_support import MIB, away, data, enable, equal, page_out, simulate, simulator, stat, to_cuda

LAUNCH_FAILURE = 719
NOT_READY = 600


@contextlib.contextmanager
def standard_error() -> Iterator[list[str]]:
    """What the process writes there, in C as well; complete when the block ends."""
    lines: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode().splitlines()


def check_driver_too_old() -> None:
    simulate(driver_version=10010)
    with raises(RuntimeError, "driver"):
        enable()
    assert not torch.lms.is_enabled("cuda")


def check_pinned_memory_refused() -> None:
    simulate(pinned_limit=0)
    values = [data(4, seed) for seed in range(8)]
    with standard_error() as lines:
        enable(8 * MIB)
        tensors = to_cuda(values)
        for _ in range(2):
            page_out()
            for tensor, value in zip(tensors, values, strict=True):
                equal(tensor, value)
    said = [line for line in lines if "LMS" in line]
    assert len(said) == 1 and "pin" in said[0], lines
    assert simulator().sim_pinned_bytes() == 0


def check_pinned_memory_refused_later() -> None:
    simulate(pinned_limit=80 * MIB)
    values = [data(16, seed) for seed in range(12)]
    with standard_error() as lines:
        enable(32 * MIB)
        tensors = to_cuda(values)
        for tensor, value in zip(tensors, values, strict=True):
            equal(tensor, value)
    assert len([line for line in lines if "LMS" in line]) == 1, lines


def check_device_lost_in_mid_copy() -> None:
    enable(16 * MIB)
    lost, resident = away(data(8)), data(8, 1).cuda()
    other = lost.clone()  # brings it in: that copy is enqueued, and may not have run
    simulator().sim_device_lost(0, LAUNCH_FAILURE)
    for use in (resident.cpu, lost.cpu, other.cpu, torch.cuda.synchronize):
        with raises(RuntimeError, "CUDA"):
            use()
    with raises(RuntimeError, "LMS: the device failed"):
        torch.empty(16 * MIB, device="cuda")
    with raises(RuntimeError, "device"):
        torch.lms.disable("cuda")
    assert torch.lms.is_enabled("cuda")
    del lost, resident, other
    gc.collect()
    assert stat("allocated_blocks.current") == 0


def check_an_operation_without_its_data_is_stopped() -> None:
    """The observer cannot make an operation fail; without memory under it a kernel would lose the device."""
    enable(24 * MIB)
    values = [data(8, seed) for seed in range(4)]
    tensors = [away(value) for value in values]
    kept = data(8, 9)
    pinned = kept.pin_memory()
    simulator().sim_fail(b"cuMemSetAccess", 0, NOT_READY)
    uses: list[Callable[[], object]] = [
        tensors[0].cpu,
        tensors[1].zero_,
        lambda: tensors[2].add_(1),
        lambda: tensors[2].copy_(pinned, non_blocking=True),
        lambda: pinned.copy_(tensors[3], non_blocking=True),
        lambda: tensors[3].copy_(tensors[2]),
    ]
    for use in uses:
        with raises(RuntimeError, "LMS: the device failed to bring a block back", "cuMemSetAccess", "NOT_READY"):
            use()
    assert stat("resident_bytes.current") == 0
    simulator().sim_fail_clear()
    torch.cuda.synchronize()  # nothing was lost,
    for tensor, value in zip(tensors, values, strict=True):
        equal(tensor, value)
    assert torch.equal(pinned, kept)
    tensors[2].copy_(pinned, non_blocking=True)  # and nothing is refused any more
    equal(tensors[2], kept)


def check_an_operation_without_its_data_waits_once_for_the_driver() -> None:
    enable(24 * MIB)
    one, other, *rest = (away(data(8, seed)) for seed in range(4))
    simulator().sim_fail(b"cuMemSetAccess", 0, NOT_READY)

    def calls(use: Callable[[], object]) -> int:
        before = int(simulator().sim_calls(b"cuMemSetAccess"))
        with raises(RuntimeError, "LMS: the device failed to bring a block back", "NOT_READY"):
            use()
        return int(simulator().sim_calls(b"cuMemSetAccess")) - before

    uses: list[Callable[[], object]] = [
        lambda: torch.lms.pin(one).__enter__(),
        one.zero_,
        lambda: one.copy_(other),
        lambda: torch._foreach_copy_([one, other], rest),
    ]
    first, *others = (calls(use) for use in uses)
    assert first == 17 and others == [6] * 3, (first, others)  # after the first that waited in vain, for less long


def check_disable_with_more_than_the_card_holds() -> None:
    simulate(memory=128 * MIB)
    values = [data(16, seed) for seed in range(12)]
    enable(64 * MIB)
    tensors = to_cuda(values)
    with raises(torch.OutOfMemoryError, "stays enabled", "free tensors"):
        torch.lms.disable("cuda")
    assert torch.lms.is_enabled("cuda") and torch.lms.limit("cuda") == 64 * MIB
    for tensor, value in zip(tensors, values, strict=True):
        equal(tensor, value)
    tensors.append(data(16, 99).cuda())  # goes on as before
    assert stat("device_bytes.current") <= 64 * MIB
    del tensors[4:], tensor
    torch.lms.disable("cuda")
    assert not torch.lms.is_enabled("cuda") and stat("away_bytes.current") == 0
    for tensor, value in zip(tensors, values, strict=False):
        equal(tensor, value)


def check_freed_by_another_thread_while_it_moves() -> None:
    enable(16 * MIB)
    value = data(2)
    for _ in range(10):
        tensors = to_cuda([value] * 12)
        mover = threading.Thread(target=torch.lms.reclaim, args=("cuda",))
        mover.start()
        tensors.clear()
        mover.join()
    assert stat("allocated_blocks.current") == 0
    equal(value.cuda(), value)
