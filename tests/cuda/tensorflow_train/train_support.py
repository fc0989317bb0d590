"""What the checks of training on simulated GPUs share.

A check runs a program on the CPU, in a child, then on GPUs whose operations the stand-ins of ../tensorflow_operators
do, under LMS with less and less memory. It is the same program with the same kernels, so every result has to have the
same bits. That holds where both run the same operations, so oneDNN and what grappler does for one kind of device only
are switched off: for GPUs the layout optimizer turns images to NCHW, which the CPU's convolutions cannot do, and the
selector of implementations takes cuDNN's LSTM; the remapper fuses operations for each kind of device in its own way.
"""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import static_runtime
import tensorflow as tf
from common import MIB, directory, in_fork, load

OPERATORS = os.environ["LMS_TEST_OPERATORS"]  # the library
AMPLE = 640 * MIB  # a limit that nothing here reaches
MIN_SIZE = 128 << 10  # bytes from which on a tensor is paged: most of what is as large as a batch
# By how much a program needs more than it gets, and with which policy.
COMBINATIONS = (
    (1.0, "iteration"),
    *((factor, policy) for factor in (1.5, 2.0, 4.0) for policy in ("iteration", "lru")),
)
SEEDS = int(os.environ.get("LMS_TEST_SEEDS", "0"))  # of the schedule, for each combination; 0: what a check says

if TYPE_CHECKING:
    Results = list[tuple[str, np.ndarray]]


def prepare(devices: int = 1) -> None:
    """Has to be called before the first operation."""
    os.environ["SIM_CUDA_DEVICES"] = str(devices)
    static_runtime.redirect()
    tf.get_logger().setLevel("ERROR")  # of functions that are traced again, since programs begin anew
    (cpu,) = tf.config.list_physical_devices("CPU")
    configurations = [tf.config.experimental.VirtualDeviceConfiguration() for _ in range(devices)]
    tf.config.experimental.set_virtual_device_configuration(cpu, configurations)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)  # as many as the stand-ins have
    if hasattr(tf.config.experimental, "enable_op_determinism"):  # from 2.8 on; kernels of one thread need none
        tf.config.experimental.enable_op_determinism()
    if hasattr(tf.config.experimental, "enable_tensor_float_32_execution"):  # from 2.4 on
        tf.config.experimental.enable_tensor_float_32_execution(False)
    off = ("layout_optimizer", "remapping", "implementation_selector", "auto_mixed_precision")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(off, False))


@tf.autograph.experimental.do_not_convert
def pairs(first: Iterable[Any], second: Iterable[Any]) -> list[tuple[Any, Any]]:
    """As zip(..., strict=True), which old interpreters lack, and functions cannot call that are made into graphs."""
    first, second = list(first), list(second)
    assert len(first) == len(second)
    return list(zip(first, second))  # noqa: B905


def models() -> Any:
    return load("keras_models")


def operators() -> Any:
    """The operations that the library has for programs."""
    return tf.load_op_library(OPERATORS)


def simulator() -> ctypes.CDLL:
    found = ctypes.CDLL("libcuda.so.1")
    found.sim_seed.restype, found.sim_seed.argtypes = None, [ctypes.c_uint64]
    found.sim_refused_kernels.restype = ctypes.c_char_p
    return found


def report() -> dict[str, tuple[int, int]]:
    """By name, how many operations the stand-ins enqueued, and how many they ran at once."""
    function = ctypes.CDLL(OPERATORS).stand_in_report
    function.restype = ctypes.c_char_p
    rows = (line.split() for line in function().decode().splitlines())
    return {name: (int(later), int(at_once)) for name, later, at_once in rows}


def stats(gpu: int = 0) -> dict[str, int]:
    return tf.lms.stats(f"gpu:{gpu}")


def enable(limit: int, policy: str = "iteration", gpus: int = 1) -> None:
    for gpu in range(gpus):
        tf.lms.enable(f"gpu:{gpu}", limit=limit, policy=policy, min_size=MIN_SIZE)
        tf.lms.reset_peak_stats(f"gpu:{gpu}")


def on_cpu(work: Callable[[], Any], devices: int = 1) -> Any:
    """What ``work()`` returns in a child that sees no GPU; to be called before ``prepare()``, which asks CUDA."""
    with directory() as folder:
        path = os.path.join(folder, "result")

        def child() -> None:
            prepare(devices)
            tf.config.set_visible_devices([], "GPU")
            with open(path, "wb") as file:
                pickle.dump(work(), file)

        in_fork(child)
        with open(path, "rb") as file:
            return pickle.load(file)


def same(actual: Results, expected: Results) -> None:
    assert [name for name, _ in actual] == [name for name, _ in expected]
    different = [
        f"{name}: {np.count_nonzero(a != e)} of {a.size}, by {np.max(np.abs(a - e)) if a.size else 0}"
        for (name, a), (_, e) in pairs(actual, expected)
        if a.dtype != e.dtype or a.shape != e.shape or a.tobytes() != e.tobytes()
    ]
    assert not different, different[:20]


def moved(gpu: int) -> tuple[int, int]:
    found = stats(gpu)
    return found["out.bytes"] + found["clean_drop.bytes"], found["in.bytes"]


def same_as_on_cpu(
    make: Callable[[str], Callable[[], Results]],
    expected_operations: Iterable[str],
    gpus: int = 1,
    seeds: int = 1,
) -> None:
    """``make(kind)`` makes a program for devices of that kind, "CPU" or "GPU"; each call of it begins anew.

    ``expected_operations``: what must have run on the GPU, as evidence that it was not the CPU that computed.
    ``seeds``: of the schedule, for each combination; no two combinations share one.
    """
    expected = on_cpu(make("CPU"), gpus)
    assert all(np.isfinite(value).all() for _, value in expected)  # a NaN would hide differences
    prepare(gpus)
    operators()
    simulated = simulator()
    enable(AMPLE, gpus=gpus)
    program = make("GPU")
    same(program(), expected)  # also makes what is made once
    for gpu in range(gpus):
        tf.lms.reset_peak_stats(f"gpu:{gpu}")
    same(program(), expected)
    need = max(stats(gpu)["allocated_bytes.peak"] for gpu in range(gpus))
    assert all(moved(gpu) == (0, 0) for gpu in range(gpus)), stats()
    for number, (factor, policy) in enumerate(COMBINATIONS):
        limit = int(need / factor)
        enable(limit, policy, gpus)
        for seed in range(1 + number, 1 + number + len(COMBINATIONS) * (SEEDS or seeds), len(COMBINATIONS)):
            before = [moved(gpu) for gpu in range(gpus)]
            simulated.sim_seed(seed)
            same(program(), expected)
            for gpu in range(gpus):
                out, back = (now - then for now, then in pairs(moved(gpu), before[gpu]))
                found = stats(gpu)
                over = found["over_limit_bytes.peak"]
                row = f"need {need / MIB:.0f} MiB at {factor}x, {policy}, seed {seed}, GPU {gpu}"
                print(f"{row}: {out / MIB:.0f} MiB out, {back / MIB:.0f} MiB in, {over / MIB:.0f} MiB over the limit")
                assert factor == 1 or (out > 0 and back > 0), (row, found)
                assert found["device_bytes.peak"] <= limit + over, (row, found)
                assert found["pinned_bytes.current"] == 0, (row, found)
    assert not simulated.sim_refused_kernels(), simulated.sim_refused_kernels()
    done = report()
    known = [name for name in expected_operations if hasattr(tf.raw_ops, name)]  # an old release does not have all
    missing = [name for name in known if sum(done.get(name, (0, 0))) == 0]
    assert not missing, (missing, done)
