"""Switching LMS on and off for CUDA devices, limits, the names of the older implementations, and what is refused."""

from __future__ import annotations

import os
import threading
import warnings

import torch
from common import raises
from cuda_support import MIB, away, data, enable, equal, page_out, simulate, simulator, stat, to_cuda
from torch.lms import _environment

GIB = 1 << 30


def check_contents_come_back_at_their_addresses() -> None:
    values = [data(4, seed) for seed in range(16)]
    enable(16 * MIB)
    tensors = to_cuda(values)
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert stat("away_bytes.current") >= 48 * MIB
    for _ in range(3):
        for tensor, value in zip(tensors, values, strict=True):
            equal(tensor, value)
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert stat("device_bytes.peak") <= 16 * MIB and stat("over_limit_bytes.peak") == 0
    values[3] = data(4, 99)
    tensors[3].copy_(values[3])
    page_out()
    copies = [tensor.clone() for tensor in tensors]
    for tensor, copy, value in zip(tensors, copies, values, strict=True):
        equal(tensor, value)
        equal(copy, value)
    del tensors, copies, tensor, copy
    assert stat("allocated_bytes.current") == 0


def check_default_limit_is_what_is_free_less_five_percent() -> None:
    simulate(memory=GIB)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    assert total == GIB and free > 0
    torch.lms.enable("cuda")
    assert torch.lms.limit("cuda") == free // 100 * 95
    tensors = to_cuda([data(16, seed) for seed in range(8)])
    assert stat("resident_bytes.current") >= 128 * MIB
    for limit in (None, "auto"):  # what LMS holds already is not lost to it
        torch.lms.set_limit("cuda", 512 * MIB)
        torch.lms.enable("cuda", limit=limit)
        assert abs(torch.lms.limit("cuda") - free // 100 * 95) <= 64 * MIB
    assert stat("away_bytes.current") == 0
    del tensors


def check_default_size_is_one_mebibyte() -> None:
    enable()
    small, large = torch.empty(MIB // 4 - 256, device="cuda"), torch.empty(MIB // 4, device="cuda")
    assert stat("allocated_blocks.current") == 1
    enable(min_size=4096)
    smaller = torch.empty(1024, device="cuda")
    assert stat("allocated_blocks.current") == 2
    del small, large, smaller
    assert stat("allocated_blocks.current") == 0


def check_limit_above_the_card() -> None:
    simulate(memory=GIB)
    with raises(ValueError, "limit: ", str(GIB + 1), str(GIB), "cuda:0"):
        enable(GIB + 1)
    assert not torch.lms.is_enabled("cuda")
    enable(GIB)
    with raises(ValueError, "nbytes: ", str(2 * GIB), str(GIB)):
        torch.lms.set_limit("cuda", 2 * GIB)
    assert torch.lms.limit("cuda") == GIB


def check_limit_below_one_operation() -> None:
    value = data(8)
    enable(2 * MIB)
    tensor = value.cuda()
    assert stat("over_limit_bytes.peak") >= 6 * MIB
    equal(tensor, value)
    enable(2 * MIB, strict=True)
    with raises(torch.OutOfMemoryError, "limit"):
        torch.empty(2 * MIB, device="cuda")
    equal(tensor, value)


def check_devices_have_limits_of_their_own() -> None:
    simulate(devices=3)
    value = data(8, 1)
    enable(8 * MIB, "cuda:2")
    torch.cuda.set_device(1)
    enable(16 * MIB, "cuda")
    assert [torch.lms.is_enabled(f"cuda:{index}") for index in range(3)] == [False, True, True]
    assert torch.lms.is_enabled("cuda") and torch.lms.limit("cuda") == 16 * MIB
    assert torch.lms.limit(torch.device("cuda", 2)) == 8 * MIB
    tensors = {index: to_cuda([value] * 4, f"cuda:{index}") for index in range(3)}
    assert stat("allocated_blocks.current", "cuda:0") == 0
    assert stat("away_bytes.current", "cuda:1") == 16 * MIB
    assert stat("away_bytes.current", "cuda:2") == 24 * MIB
    across = [tensors[1][0].to("cuda:2"), tensors[2][0].to("cuda:0"), tensors[0][0].to("cuda:1")]
    for tensor in [*across, *tensors[0], *tensors[1], *tensors[2]]:
        equal(tensor, value)
    torch.lms.disable("cuda:1")
    assert [torch.lms.is_enabled(f"cuda:{index}") for index in range(3)] == [False, False, True]
    assert stat("away_bytes.current", "cuda:1") == 0
    page_out("cuda:2")
    equal(tensors[2][3], value)


def check_disable_brings_everything_back() -> None:
    values = [data(4, seed) for seed in range(4)]
    enable(8 * MIB)
    tensors = to_cuda(values)
    assert stat("away_bytes.current") == 8 * MIB
    torch.lms.disable("cuda")
    torch.lms.disable("cuda")
    assert not torch.lms.is_enabled("cuda") and stat("away_bytes.current") == 0
    blocks = stat("allocated_blocks.current")
    other = values[0].cuda()
    assert stat("allocated_blocks.current") == blocks  # from the stock allocator
    with raises(RuntimeError, "torch.lms.enable('cuda:0'"):
        torch.lms.reclaim("cuda")
    for tensor, value in zip([*tensors, other], [*values, values[0]], strict=True):
        equal(tensor, value)
    gone = threading.Thread(target=tensors.clear)  # freed by another thread, after disable
    gone.start()
    gone.join()
    del tensor
    assert stat("allocated_blocks.current") == 0


def check_wrong_devices() -> None:
    simulate(devices=2)
    assert not torch.lms.is_enabled("cuda:7") and not torch.lms.is_enabled("cuda")
    for function in (torch.lms.limit, torch.lms.reclaim, torch.lms.trace_stop):
        with raises(RuntimeError, "torch.lms.enable"):
            function("cuda")
    assert set(torch.lms.stats("cuda:1").values()) == {0}
    assert not torch.cuda.is_initialized()
    with raises(ValueError, "device: 'cuda:2'", "2 CUDA device"):
        enable(MIB, "cuda:2")
    for device in ("meta", "mps", "xpu"):
        with raises(ValueError, "device: ", "'cpu' and 'cuda' can"):
            enable(MIB, device)
    with raises(TypeError, "device: "):
        torch.lms.enable(0)  # type: ignore[arg-type]


def check_both_kinds_at_once() -> None:
    values = [data(4, seed) for seed in range(6)]
    enable(8 * MIB)
    torch.lms.enable("cpu", limit=8 * MIB)
    on_cpu = [value.clone() for value in values]
    on_cuda = to_cuda(on_cpu)
    assert stat("away_bytes.current", "cpu") > 0 < stat("away_bytes.current", "cuda")
    for left, right in zip(on_cuda, on_cpu, strict=True):
        equal(left, right)
    torch.lms.disable("cpu")
    page_out("cuda")
    for tensor, value in zip(on_cuda, values, strict=True):
        equal(tensor, value)


# ------------------------------------------------------------------------------------------------ what is refused


def refused(kind: type[Exception], *words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with raises(kind, *words):
            enable()
    assert not torch.lms.is_enabled("cuda")


def check_no_device() -> None:
    simulate(devices=0)
    torch.cuda.set_enabled_lms(True)  # programs that say so run without a device
    refused(RuntimeError, "CUDA")
    assert torch.cuda.get_enabled_lms()


def check_device_without_virtual_memory_management() -> None:
    simulate(vmm=0)
    refused(RuntimeError, "virtual memory")
    equal(data(4).cuda(), data(4))  # the program goes on without LMS


def check_pluggable_allocator() -> None:
    library = os.environ["LMS_TEST_KERNELS"]
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "plain_malloc", "plain_free")
    torch.cuda.memory.change_current_allocator(allocator)
    refused(RuntimeError, "allocator")
    equal(data(4).cuda(), data(4))


# ------------------------------------------------------------------------------------------------ the environment


def check_switched_on_by_the_environment_when_cuda_starts() -> None:
    simulate(devices=2)
    os.environ["TORCH_LMS"] = "cuda:limit=8MiB,min_size=2MiB,policy=lru"
    _environment.switch_on()
    assert not torch.cuda.is_initialized()
    tensors = to_cuda([data(4, seed) for seed in range(4)])
    assert torch.lms.limit("cuda:0") == torch.lms.limit("cuda:1") == 8 * MIB
    assert stat("away_bytes.current") == 8 * MIB
    blocks = stat("allocated_blocks.current")
    small = torch.empty(MIB // 4, device="cuda")  # 1 MiB
    assert stat("allocated_blocks.current") == blocks and small.numel()
    for seed, tensor in enumerate(tensors):
        equal(tensor, data(4, seed))


def check_one_device_switched_on_by_the_environment() -> None:
    simulate(devices=2)
    os.environ["TORCH_LMS"] = "cuda:1:limit=50%"
    _environment.switch_on()
    assert not torch.cuda.is_initialized()
    torch.cuda.init()
    assert torch.lms.is_enabled("cuda:1") and not torch.lms.is_enabled("cuda:0")
    assert torch.lms.limit("cuda:1") == torch.cuda.get_device_properties(1).total_memory // 2
    torch.lms.set_limit("cuda:1", 0.25)
    assert torch.lms.limit("cuda:1") == torch.cuda.get_device_properties(1).total_memory // 4


def check_what_the_environment_asks_for_and_a_device_does_not_have() -> None:
    os.environ["TORCH_LMS"] = "cuda:limit=99TiB"
    _environment.switch_on()
    said = "is more than the 1073741824 bytes of memory (1 GiB) that 'cuda:0' has"
    with raises(
        Exception, "error: TORCH_LMS: limit: ", f"{said}\n\nCUDA call was originally invoked at:\n\n  TORCH_LMS=cuda"
    ):
        torch.cuda.init()


# ------------------------------------------------------------------------------------------------ the older names


def check_older_names_before_cuda_starts() -> None:
    simulate(devices=2)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_limit_lms(8 * MIB)
    torch.cuda.set_size_lms(2 * MIB)
    torch.cuda.reclaim_inactive()
    assert not torch.cuda.is_initialized() and torch.cuda.get_enabled_lms()
    tensors = to_cuda([data(4, seed) for seed in range(4)])
    assert torch.lms.limit("cuda:0") == torch.lms.limit("cuda:1") == 8 * MIB
    assert stat("away_bytes.current") == 8 * MIB
    blocks = stat("allocated_blocks.current")
    small = torch.empty(MIB // 4, device="cuda")  # 1 MiB
    assert stat("allocated_blocks.current") == blocks and small.numel()
    torch.cuda.reclaim_inactive()
    assert stat("resident_bytes.current") == 0
    for seed, tensor in enumerate(tensors):
        equal(tensor, data(4, seed))


def check_older_names_after_cuda_started() -> None:
    torch.cuda.init()
    free = torch.cuda.mem_get_info()[0]
    torch.cuda.set_enabled_lms(True)
    assert torch.lms.is_enabled("cuda") and torch.lms.limit("cuda") == free // 100 * 95
    torch.cuda.set_limit_lms(8 * MIB)
    assert torch.lms.limit("cuda") == 8 * MIB == torch.cuda.get_limit_lms()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_limit_lms(total + 1)  # more than there is means all of it
    assert torch.lms.limit("cuda") == total and torch.cuda.get_limit_lms() == total + 1
    torch.cuda.set_size_lms(4096)
    small = torch.empty(1024, device="cuda")
    assert stat("allocated_blocks.current") == 1 and small.numel()
    torch.cuda.set_limit_lms(0)
    assert abs(torch.lms.limit("cuda") - free // 100 * 95) <= 32 * MIB
    torch.cuda.set_enabled_lms(False)
    assert not torch.lms.is_enabled("cuda") and not torch.cuda.get_enabled_lms()


def check_older_names_count_small_tensors() -> None:
    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_limit_lms(16 * MIB)
    small = [torch.empty(1000, device="cuda") for _ in range(4)]  # a segment of 2 MiB
    tensors = to_cuda([data(4, seed) for seed in range(4)])
    assert torch.cuda.memory_reserved() <= 16 * MIB and stat("away_bytes.current") == 4 * MIB
    assert torch.lms.limit("cuda") == stat("limit_bytes") == 14 * MIB
    small += [torch.empty(MIB // 4 - 1, device="cuda") for _ in range(12)]  # 12 MiB, in a segment of 20
    tensors += to_cuda([data(4, 4)])
    assert torch.lms.limit("cuda") == max(0, 16 * MIB - torch.cuda.memory_reserved() + stat("device_bytes.current"))
    torch.lms.set_limit("cuda", 8 * MIB)  # which is about managed tensors alone
    for seed, tensor in enumerate(tensors):
        equal(tensor, data(4, seed))
    assert torch.lms.limit("cuda") == 8 * MIB == stat("resident_bytes.current")
    del small


def check_older_names_of_a_limit_of_0_up_to_1_3() -> None:
    assert not torch.cuda._lms._ZERO_IS_LEAST
    torch.cuda._lms._ZERO_IS_LEAST = True
    torch.cuda.set_enabled_lms(True)
    torch.cuda.init()
    assert torch.lms.limit("cuda") > 64 * MIB  # nobody has said 0
    torch.cuda.set_limit_lms(0)
    tensors = to_cuda([data(4, seed) for seed in range(4)])
    assert torch.lms.limit("cuda") == torch.cuda.memory_allocated() == 4 * MIB
    total = sum(tensor.cpu()[0] for tensor in tensors)
    assert total == sum(data(4, seed)[0] for seed in range(4))
    assert torch.lms.limit("cuda") == 4 * MIB and torch.cuda.get_limit_lms() == 0


def check_older_names_leave_unused_devices_alone() -> None:
    simulate(devices=3)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_device(1)
    tensors = to_cuda([data(4, seed) for seed in range(4)])
    assert stat("allocated_blocks.current", "cuda:1") == 4
    assert all(torch.lms.is_enabled(f"cuda:{index}") for index in range(3))
    assert "reclaimed" in torch.cuda.memory_stats(0)
    assert [torch._C._cuda_hasPrimaryContext(index) for index in range(3)] == [False, True, False]
    assert torch.lms.limit("cuda:2") > 0  # to ask for it is to use the device
    assert torch._C._cuda_hasPrimaryContext(2)
    torch.cuda.set_limit_lms(8 * MIB)
    assert torch.lms.limit("cuda:1") == torch.lms.limit("cuda:2") == 8 * MIB
    assert stat("away_bytes.current", "cuda:1") == 8 * MIB
    torch.lms.disable("cuda:0")
    assert [torch.lms.is_enabled(f"cuda:{index}") for index in range(3)] == [False, True, True]
    torch.cuda.set_enabled_lms(False)
    assert not any(torch.lms.is_enabled(f"cuda:{index}") for index in range(3))
    for seed, tensor in enumerate(tensors):
        equal(tensor, data(4, seed))


def check_older_names_switched_off_before_cuda_starts() -> None:
    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_enabled_lms(False)
    torch.cuda.init()
    assert not torch.lms.is_enabled("cuda")
    assert not to_cuda([data(4)])[0].is_cpu and stat("allocated_blocks.current") == 0
    assert simulator().sim_calls(b"cuMemAddressReserve") == 0


def check_older_names_keep_the_reason() -> None:
    simulate(vmm=0)
    torch.cuda.init()
    with raises(RuntimeError, "virtual memory"):
        torch.cuda.set_enabled_lms(True)
    assert not torch.cuda.get_enabled_lms()


def check_fork() -> None:
    value = data(4)
    enable(4 * MIB)
    tensors = to_cuda([value] * 3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with raises(RuntimeError, "fork"):
                torch.empty(MIB, device="cuda")
            with raises(RuntimeError):
                torch.lms.enable("cuda")
            status = 0 if torch.lms.is_enabled("cuda") else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    for tensor in tensors:
        equal(tensor, value)


def check_threads_that_never_set_a_device() -> None:
    values = [data(2, seed) for seed in range(24)]
    enable(8 * MIB)
    kept: dict[int, torch.Tensor] = {}

    def work(first: int) -> None:
        for index in range(first, 24, 3):
            kept[index] = values[index].cuda()
            equal(kept[first], values[first])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, value in enumerate(values):
        equal(kept[index], value)
    assert stat("out.bytes") > 0


def check_switching_under_way() -> None:
    values = [data(2, seed) for seed in range(8)]
    tensors: dict[int, torch.Tensor] = {}
    for turn in range(6):
        enable(4 * MIB, policy=("lru", "iteration")[turn % 2])
        for index, value in enumerate(values):
            if index % 3 == turn % 3:
                tensors[index] = value.cuda()
        for index, tensor in tensors.items():
            equal(tensor, values[index])
        torch.lms.disable("cuda")
        for index, tensor in tensors.items():
            equal(tensor, values[index])


def check_nothing_is_loaded_before_use() -> None:
    torch.lms.is_enabled("cuda")
    torch.cuda.set_enabled_lms(True)
    with open("/proc/self/maps") as maps:
        assert "libtorch_lms" not in maps.read()
    torch.cuda.set_enabled_lms(False)
    torch.lms.enable("cpu", limit=MIB)
    with open("/proc/self/maps") as maps:
        assert "libtorch_lms_cuda" not in maps.read()
    assert not torch.cuda.is_initialized()
    tensor = away_after_enable()
    with open("/proc/self/maps") as maps:
        assert "libtorch_lms_cuda" in maps.read()
    equal(tensor, data(4))


def away_after_enable() -> torch.Tensor:
    enable()
    return away(data(4))
