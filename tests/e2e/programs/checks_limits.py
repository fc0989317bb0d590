"""Limits that cannot be kept, stores that cannot be written, and arguments that are wrong."""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import subprocess
import sys
from itertools import pairwise

import numpy
import torch
from common import MIB, directory, raises
from skip import Skip
from support import away, data, enable, page_out, same, stat


def work() -> list[torch.Tensor]:
    parts = [data(1, i).view(512, 512) for i in range(6)]
    return [torch.tanh(a @ b / 1e6) for a, b in pairwise(parts)]


def check_limit_below_the_largest_operation() -> None:
    expected = work()
    for limit in (0, 4096, 65537, MIB, 2 * MIB):
        enable(limit)
        torch.lms.reset_peak_stats("cpu")
        same(work(), expected)
        # The excess is reported, and is never more than one operation's working set: three matrices, and what
        # data() makes one of.
        assert 0 < stat("over_limit_bytes.peak") <= 4 * MIB, (limit, torch.lms.stats("cpu"))
        assert stat("over_limit.requests") > 0 and stat("limit_bytes") == torch.lms.limit("cpu") == limit
        assert stat("device_bytes.current") <= max(limit, 4 * MIB)
    enable(64 * MIB)
    torch.lms.reset_peak_stats("cpu")
    same(work(), expected)
    assert stat("over_limit_bytes.peak") == 0


# Kernels that go through several blocks in a loop, some of which they allocate themselves: arguments, and what is done.
LOOPS = {
    "attention": (
        lambda: [data(1, i).view(1, 8, 512, -1) for i in range(3)],
        torch.nn.functional.scaled_dot_product_attention,
    ),
    "unique": (
        lambda: [(data(1)[:60000] / 30).long()],
        lambda a: torch.unique(a, return_inverse=True, return_counts=True),
    ),
    "coalesce": (
        lambda: [torch.sparse_coo_tensor(data(1)[:60000].abs().long().view(2, -1), data(1, 1)[:30000])],
        torch.Tensor.coalesce,
    ),
    "least squares": (
        lambda: [data(0.5).view(512, 256), data(0.5, 1).view(512, 256)[:, :8].contiguous()],
        lambda a, b: torch.linalg.lstsq(a, b).solution,
    ),
    "sort": (lambda: [data(3)], torch.sort),
}


def check_an_operation_does_not_trade_its_own_blocks() -> None:
    for name, (make, operation) in LOOPS.items():
        operation(*make())  # libraries choose by what they have seen
        expected = operation(*make())
        enable(MIB // 2, min_size=4096)
        given = make()
        before = torch.lms.stats("cpu")
        actual = operation(*given)
        after = torch.lms.stats("cpu")
        grown = {key: after[key] - before[key] for key in after}
        blocks = before["allocated_blocks.current"] + grown["allocations.cached"] + grown["allocations.mapped"]
        assert grown["in.blocks"] <= 2 * blocks, (name, blocks, grown)
        assert after["over_limit_bytes.peak"] > 0, (name, after)
        if name == "least squares":  # MKL's result depends on where its arguments lie
            assert torch.allclose(actual, expected, rtol=1e-3, atol=1e-4)
        else:
            same(list(actual), list(expected)) if isinstance(expected, tuple) else same(actual, expected)
        torch.lms.disable("cpu")


# Batches of random length, and the most RAM that the process had, in KiB.
LENGTHS = """
import random, resource, sys, torch
torch.set_num_threads(1)
if sys.argv[1] == "lms":
    torch.lms.enable("cpu", limit=8 << 30)
random.seed(0)
layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
for _ in range(60):
    layer(torch.ones(8, random.randint(50, 400), 128)).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def check_random_lengths_take_no_more_ram_than_stock() -> None:
    command = [sys.executable, "-W", "ignore", "-c", LENGTHS]
    stock, lms = (int(subprocess.check_output([*command, how])) for how in ("stock", "lms"))
    assert lms <= 1.1 * stock, (lms, stock)


def check_strict_limit_is_an_error_that_says_why() -> None:
    enable(3 * MIB, strict=True)
    first, second = data(1, 1), data(1, 2)
    with torch.lms.pin(first, second), raises(torch.OutOfMemoryError, "pinned", "limit", str(2 * MIB)):
        torch.empty(3 * MIB // 4)
    with raises(torch.OutOfMemoryError, "limit"):
        torch.empty(MIB)  # 4 MiB: would never fit
    same([first, second], [data(1, 1), data(1, 2)])  # intact, and there is room again
    assert torch.ones(3 * MIB // 4 - 1024).sum() > 0
    same([first, second], [data(1, 1), data(1, 2)])
    assert stat("over_limit_bytes.peak") == 0


def check_strict_pin_is_an_error() -> None:
    enable(64 * MIB)
    tensors = [data(1, i) for i in range(4)]
    enable(2 * MIB, strict=True)
    with raises(torch.OutOfMemoryError, "limit"), torch.lms.pin(*tensors):
        pass
    assert stat("pinned_bytes.current") == 0
    enable(64 * MIB)
    same(tensors, [data(1, i) for i in range(4)])


def check_strict_operation_whose_inputs_do_not_fit() -> None:
    enable(64 * MIB)
    tensors = [data(1, i) for i in range(4)]
    expected = torch.cat([data(1, i) for i in range(4)])
    page_out()
    enable(2 * MIB, strict=True)
    with raises(torch.OutOfMemoryError, "limit"):
        torch.cat(tensors)
    enable(64 * MIB)
    same(tensors, [data(1, i) for i in range(4)])
    same(torch.cat(tensors), expected)


def check_what_passes_the_limit_is_named() -> None:
    assert torch.lms.over_limit_operation("cpu") == ""
    enable(64 * MIB)
    first, second = (data(1, seed).view(512, 512) for seed in (1, 2))
    cell, sequence = torch.nn.LSTM(64, 256, batch_first=True), torch.zeros(64, 32, 64)
    assert torch.lms.over_limit_operation("cpu") == ""
    torch.lms.set_limit("cpu", 2 * MIB)
    torch.tanh(first)
    assert torch.lms.over_limit_operation("cpu") == ""
    first @ second
    assert torch.lms.over_limit_operation("cpu") == "aten::mm" and stat("over_limit_bytes.peak") == MIB
    if torch.backends.mkldnn.is_available():
        with torch.no_grad():
            cell(sequence)  # whose workspace nobody sees
        assert torch.lms.over_limit_operation("cpu") == "aten::mkldnn_rnn_layer"
    torch.lms.reset_peak_stats("cpu")
    assert torch.lms.over_limit_operation("cpu") == ""
    enable(2 * MIB, strict=True)
    with raises(torch.OutOfMemoryError, "requested in aten::mm, limit"):
        first @ second


def check_limit_is_kept() -> None:
    enable(8 * MIB)
    tensors = [data(1, i) for i in range(40)]
    for _ in range(2):
        same([tensor + 0 for tensor in tensors], [data(1, i) for i in range(40)])
    values = torch.lms.stats("cpu")
    assert values["device_bytes.peak"] <= 8 * MIB and values["over_limit_bytes.peak"] == 0, values
    assert values["allocated_bytes.peak"] >= 40 * MIB
    torch.lms.set_limit("cpu", 3 * MIB)
    assert stat("device_bytes.current") <= 3 * MIB and torch.lms.limit("cpu") == 3 * MIB
    same(tensors, [data(1, i) for i in range(40)])


def resident_size() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def check_memory_really_leaves() -> None:
    # With a store in a directory, what the process itself has resident is what the limit says, not a count alone.
    with directory() as folder:
        enable(16 * MIB, store=folder)
        before = resident_size()
        tensors = [torch.full((16 * MIB // 4,), float(i)) for i in range(12)]
        assert resident_size() - before < 40 * MIB, resident_size() - before
        assert [float(tensor[-1]) for tensor in tensors] == [float(i) for i in range(12)]
        assert resident_size() - before < 40 * MIB, resident_size() - before


def check_reclaim() -> None:
    enable()
    tensors = [data(1, i) for i in range(8)]
    torch.lms.reclaim("cpu", 0)
    assert stat("away_bytes.current") == 0
    freed = torch.lms.reclaim("cpu", 3 * MIB)
    assert 3 * MIB <= freed <= 4 * MIB and stat("away_bytes.current") == freed
    assert torch.lms.reclaim("cpu") == 8 * MIB - freed
    assert torch.lms.reclaim("cpu") == 0
    assert stat("reclaimed.bytes") == 8 * MIB
    with torch.lms.pin(tensors[0]):
        tensors[1].sum()
        assert torch.lms.reclaim("cpu") == MIB
    same(tensors, [data(1, i) for i in range(8)])
    with raises(ValueError, "nbytes"):
        torch.lms.reclaim("cpu", 1.5)
    with raises(ValueError, "nbytes"):
        torch.lms.reclaim("cpu", -1)


def check_min_size() -> None:
    enable(min_size=MIB)
    small, large = torch.zeros(MIB // 4 - 1), torch.zeros(MIB // 4)
    assert stat("allocated_blocks.current") == 1
    del small
    assert stat("allocated_blocks.current") == 1
    del large
    assert stat("allocated_blocks.current") == 0
    enable(min_size=1)
    tiny = torch.zeros(1)
    assert stat("allocated_blocks.current") == 1 and float(tiny) == 0.0


def check_store_directory_is_used() -> None:
    with directory() as folder:
        enable(store=pathlib.Path(folder))
        free = shutil.disk_usage(folder).free
        tensors = [away(data(8, i)) for i in range(2)]
        assert os.listdir(folder) == []  # no file is left behind, however the process ends
        assert any(folder in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if link(fd))
        assert stat("store_bytes.current") >= 16 * MIB and free > 0
        same(tensors, [data(8, i) for i in range(2)])


def link(descriptor: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{descriptor}")


def check_store_directory_vanishes() -> None:
    expected = [data(1, i) for i in range(100)]
    with directory() as parent:
        folder = os.path.join(parent, "store")
        os.mkdir(folder)
        enable(8 * MIB, store=folder)
        tensors = [away(tensor) for tensor in expected[:4]]
        os.rmdir(folder)
        same(tensors, expected[:4])
        # More than the store has claimed on disk so far, so that it has to grow where nothing is any more.
        with raises(RuntimeError, "store", folder):
            while True:
                tensors.append(expected[len(tensors)].clone())
        with raises(OSError, "store", folder):
            torch.lms.reclaim("cpu")
        assert stat("store_failures") > 0
        same(tensors, expected[: len(tensors)])
        with raises(ValueError, "store: "):
            enable(store=folder)
        enable(8 * MIB, store=None)  # and goes on with another store
        same([tensor + 1 for tensor in tensors], [tensor + 1 for tensor in expected[: len(tensors)]])


def fill_store(folder: str) -> None:
    expected = [data(1, i) for i in range(24)]
    enable(4 * MIB, store=folder)
    tensors: list[torch.Tensor] = []
    with raises(RuntimeError, "store", folder):
        for tensor in expected:
            tensors.append(tensor.clone())
    if stat("store_failures") == 0:
        raise AssertionError(torch.lms.stats("cpu"))
    same(tensors, expected[: len(tensors)])
    enable(64 * MIB, store=None)
    same(tensors, expected[: len(tensors)])
    enable(4 * MIB, store=None)
    same([tensor + 1 for tensor in tensors], [tensor + 1 for tensor in expected[: len(tensors)]])


def check_store_that_may_not_grow() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, resource.RLIM_INFINITY))
    with directory() as folder:
        fill_store(folder)


def mount_tmpfs(folder: str, mib: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        raise Skip(f"needs the right to mount a tmpfs of {mib} MiB: {mounted.stderr.strip()}")


def check_store_on_a_full_disk() -> None:
    with directory() as folder:
        mount_tmpfs(folder, 8)
        try:
            fill_store(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def check_store_on_a_disk_that_fills_up_later() -> None:
    with directory() as folder:
        mount_tmpfs(folder, 136)
        expected = [data(8, i) for i in range(12)]
        try:
            enable(4 * MIB, store=folder)
            tensors = [tensor.clone() for tensor in expected[:6]]
            page_out()
            with open(os.path.join(folder, "other"), "wb") as file:
                with raises(OSError):
                    while True:
                        file.write(b"x" * MIB)
                        file.flush()
                with raises(RuntimeError, "store"):
                    for tensor in expected[6:]:
                        tensors.append(tensor.clone())
                same(tensors, expected[: len(tensors)])
                file.truncate(0)  # there is room again
            tensors += [tensor.clone() for tensor in expected[len(tensors) :]]
            page_out()
            same(tensors, expected)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def check_store_that_cannot_be_created() -> None:
    if os.geteuid() == 0:
        folder = "/proc/self"  # where not even root can create a file
        with raises(OSError, "store"):
            enable(store=folder)
    else:
        with directory() as folder:
            os.chmod(folder, 0o500)
            with raises(OSError, "store"):
                enable(store=folder)
    assert not torch.lms.is_enabled("cpu") and "numpy" not in vars(torch.Tensor)
    enable()
    assert torch.lms.is_enabled("cpu")


def check_wrong_arguments_name_themselves() -> None:
    wrong = [
        ("limit", TypeError, {"limit": True}),
        ("limit", TypeError, {"limit": None}),
        ("limit", TypeError, {"limit": [MIB]}),
        ("limit", ValueError, {"limit": 1.5}),
        ("limit", ValueError, {"limit": "1"}),
        ("limit", ValueError, {"limit": "8 gigs"}),
        ("limit", ValueError, {"limit": -1}),
        ("limit", ValueError, {"limit": 2**64}),
        ("min_size", ValueError, {"min_size": 1.0}),
        ("min_size", ValueError, {"min_size": 2 * MIB}),
        ("min_size", TypeError, {"min_size": False}),
        ("min_size", ValueError, {"min_size": 0}),
        ("min_size", ValueError, {"min_size": -5}),
        ("store", TypeError, {"store": 7}),
        ("store", ValueError, {"store": ""}),
        ("store", ValueError, {"store": "a\0b"}),
        ("store", ValueError, {"store": __file__}),
        ("store", ValueError, {"store": "/nowhere/at/all"}),
        ("policy", TypeError, {"policy": None}),
        ("policy", TypeError, {"policy": 1}),
        ("policy", ValueError, {"policy": "LRU"}),
        ("strict", TypeError, {"strict": 1}),
        ("strict", TypeError, {"strict": None}),
    ]
    for enabled in (False, True):
        for name, kind, options in wrong:
            with raises(kind, f"{name}: "):
                torch.lms.enable("cpu", **{"limit": MIB, **options})  # type: ignore[arg-type]
            assert torch.lms.is_enabled("cpu") == enabled
        for device, kind in (
            ("cuda", ValueError),
            ("meta", ValueError),
            ("gpu", ValueError),
            (0, TypeError),
            (None, TypeError),
        ):
            for function in (
                lambda device: torch.lms.enable(device, limit=MIB),
                torch.lms.disable,
                torch.lms.limit,
                lambda device: torch.lms.set_limit(device, MIB),
                torch.lms.reclaim,
                torch.lms.stats,
                torch.lms.reset_peak_stats,
                torch.lms.trace_stop,
                lambda device: torch.lms.trace_start(device, "x"),
            ):
                with raises(kind, "device: "):
                    function(device)
        enable(MIB)
    for value, kind in ((-1, ValueError), (True, TypeError), (1.5, ValueError), (8, ValueError), ("8", ValueError)):
        with raises(kind, "nbytes: "):
            torch.lms.set_limit("cpu", value)
    assert torch.lms.limit("cpu") == MIB
    with raises(TypeError, "path: "):
        torch.lms.trace_start("cpu", 3)
    with raises(OSError):
        torch.lms.trace_start("cpu", "/nowhere/at/all")
    with raises(TypeError):
        torch.lms.enable("cpu")
    enable(numpy.int64(MIB))
    torch.lms.enable(torch.device("cpu"), limit=2 * MIB)
    assert torch.lms.limit("cpu:0") == 2 * MIB


def check_wrong_arguments_say_what_was_meant() -> None:
    with directory() as folder:
        file = os.path.join(folder, "store")
        open(file, "w").close()
        for options, words in (
            ({"limit": 8}, ("8 bytes", "did you mean '8GiB'?")),
            ({"limit": 1.5}, ("did you mean '1.5GiB'?",)),
            ({"limit": 8e9}, ("did you mean the int 8000000000?",)),
            ({"limit": "8 gigs"}, ("write it as '8GiB'",)),
            ({"min_size": "2MiB"}, ("more than the limit of 1 MiB",)),
            ({"store": "~/store"}, (f"did you mean {os.path.expanduser('~/store')!r}?",)),
            ({"store": file}, ("a file", f"did you mean {folder!r}?")),
            ({"policy": "LRU"}, ("did you mean 'lru'?",)),
            ({"policy": "iterations"}, ("did you mean 'iteration'?",)),
        ):
            with raises(ValueError, *words):
                torch.lms.enable("cpu", **{"limit": MIB, **options})  # type: ignore[arg-type]
    with raises(ValueError, "did you mean 'cuda:1'?"):
        torch.lms.enable("gpu:1", limit=MIB)
    with raises(ValueError, "did you mean 'cpu'?"):
        torch.lms.enable("CPU", limit=MIB)
    with raises(TypeError, "limit='8GiB'"):
        torch.lms.enable("cpu")


def check_sizes_as_text_and_as_parts() -> None:
    enable("0.5 GiB", min_size="4KiB")
    assert torch.lms.limit("cpu") == 512 * MIB
    torch.lms.set_limit("cpu", 0.5)
    half = torch.lms.limit("cpu")
    torch.lms.set_limit("cpu", "25%")
    assert half - 2 <= 2 * torch.lms.limit("cpu") <= half <= 512 * 1024 * 1024 * MIB
    tensors = [data(1, seed=index) for index in range(8)]
    resident = stat("resident_bytes.current")
    assert resident >= 8 * MIB
    assert resident // 2 <= torch.lms.reclaim("cpu", "50%") < resident
    assert torch.lms.reclaim("cpu", "1M") == MIB and len(tensors) == 8
    torch.cuda.set_limit_lms("1.5GB")
    torch.cuda.set_size_lms("2M")
    assert (torch.cuda.get_limit_lms(), torch.cuda.get_size_lms()) == (1_500_000_000, 2 * MIB)


def check_needs_enable_first() -> None:
    for function in (
        torch.lms.limit,
        lambda device: torch.lms.set_limit(device, MIB),
        torch.lms.reclaim,
        lambda device: torch.lms.trace_start(device, "trace"),
        torch.lms.trace_stop,
    ):
        with raises(RuntimeError, "torch.lms.enable"):
            function("cpu")
    assert not torch.lms.is_enabled("cpu") and not torch.lms.is_enabled("cuda")
    assert set(torch.lms.stats("cpu").values()) == {0}
    torch.lms.reset_peak_stats("cpu")
    torch.lms.disable("cpu")
    torch.lms.disable("cpu")


def check_peak_statistics() -> None:
    enable()
    tensor = data(4)
    del tensor
    assert stat("allocated_bytes.peak") >= 4 * MIB
    torch.lms.reset_peak_stats("cpu")
    values = torch.lms.stats("cpu")
    assert values["allocated_bytes.peak"] == values["allocated_bytes.current"] == 0
    assert all(type(value) is int and value >= 0 for value in values.values())


def check_older_names_for_cuda() -> None:
    cuda = torch.cuda
    assert (cuda.get_enabled_lms(), cuda.get_limit_lms(), cuda.get_size_lms()) == (False, 0, MIB)
    cuda.set_limit_lms(8 * MIB)
    cuda.set_size_lms(4096)
    cuda.reclaim_inactive()
    assert (cuda.get_limit_lms(), cuda.get_size_lms()) == (8 * MIB, 4096)
    if cuda.is_available():
        with raises(RuntimeError, "CUDA"):
            cuda.set_enabled_lms(True)
    else:
        cuda.set_enabled_lms(True)
        assert cuda.get_enabled_lms() and not torch.lms.is_enabled("cpu")
    cuda.set_enabled_lms(False)
    assert not cuda.get_enabled_lms()
    with raises(ValueError, "limit: "):
        cuda.set_limit_lms(0.5)  # of which device?
    with raises(ValueError, "size: "):
        cuda.set_size_lms(-1)
    with raises(TypeError, "enable: "):
        cuda.set_enabled_lms(1)
