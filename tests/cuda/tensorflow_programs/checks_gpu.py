"""What LMS promises of TensorFlow's GPUs, with the official GPU wheel on the simulated CUDA.

The simulation runs copies, not kernels, so operations here are those that only copy: Copy on the device, assignments,
and what moves tensors between devices. It reads its options when CUDA is first used, so simulate() comes first.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import static_runtime
import tensorflow as tf

MIB = 1 << 20


def simulate(**options: object) -> None:
    for name, value in options.items():
        os.environ[f"SIM_CUDA_{name.upper()}"] = str(value)
    static_runtime.redirect()


def enable(limit: int = 16 * MIB, gpus: int = 1, **options: Any) -> None:
    for gpu in range(gpus):
        tf.lms.enable(f"gpu:{gpu}", limit=limit, **options)


def stat(name: str, gpu: int = 0) -> int:
    return tf.lms.stats(f"gpu:{gpu}")[name]


def data(seed: int, mib: float = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**31, int(mib * MIB) // 4, dtype=np.int32).view(np.float32)


def memory_info(device: str) -> dict[str, int]:
    """What TensorFlow's own allocator counts, LMS's blocks left out. Before 2.5 only the counters of LMS ask for it."""
    if hasattr(tf.config.experimental, "get_memory_info"):
        return tf.config.experimental.get_memory_info(device)
    gpu = int(device.rpartition(":")[2])
    return {"current": tf.experimental.get_bytes_in_use(gpu), "peak": tf.experimental.get_peak_bytes_in_use(gpu)}


def same(tensor: Any, expected: np.ndarray) -> None:
    assert tensor.numpy().tobytes() == expected.tobytes()


def copied(tensor: Any) -> Any:
    """A new tensor that the device copies into; without a specification the operation would hand on the old one."""
    return tf.raw_ops.Copy(input=tensor, tensor_name="tensor:0", debug_ops_spec=["DebugIdentity;file:///nowhere;0"])


def check_stock_devices_without_lms() -> None:
    simulate()
    with tf.device("GPU:0"):
        tensor = copied(tf.constant(data(1)))
    assert tensor.device.endswith("GPU:0")
    same(tensor, data(1))
    if hasattr(tf.config.experimental, "get_memory_info"):
        assert memory_info("GPU:0")["current"] >= 4 * MIB
    assert not tf.lms.is_enabled("gpu:0")
    try:
        tf.lms.enable("gpu:0", limit=16 * MIB)
    except RuntimeError as error:
        assert "before the first operation" in str(error), error
    else:
        raise AssertionError("LMS was enabled on a stock device")


def check_contents() -> None:
    """Tensors and variables of twice the limit, on two GPUs, in a random program; every byte is compared."""
    simulate(devices=2)
    enable(gpus=2)
    random = np.random.default_rng(7)
    tensors: dict[int, Any] = {}
    contents: dict[int, np.ndarray] = {}
    for step in range(200):
        key, gpu = int(random.integers(16)), int(random.integers(2))
        with tf.device(f"GPU:{gpu}"):
            action = int(random.integers(6))
            if key not in tensors or action == 0:
                contents[key] = data(step, random.integers(4, 17) / 4)
                made = tf.Variable if random.integers(2) else tf.constant
                tensors[key] = made(contents[key])
            elif action == 1:
                same(tensors[key], contents[key])
            elif action == 2:
                tensors[key] = copied(tensors[key])
            elif action == 3:  # a copy when the tensor is on the other GPU
                tensors[key] = tf.identity(tensors[key])
            elif action == 4:
                with tf.device("CPU:0"):
                    on_host = tf.identity(tensors[key])
                tensors[key] = tf.identity(on_host)
            elif isinstance(tensors[key], tf.Variable):
                contents[key] = data(step, contents[key].nbytes / MIB)
                tensors[key].assign(contents[key])
    for key, tensor in tensors.items():
        same(tensor, contents[key])
    for gpu in range(2):
        assert stat("out.blocks", gpu) > 0
        assert stat("in.blocks", gpu) > 0
        assert stat("pinned_bytes.current", gpu) == 0
        assert stat("resident_bytes.peak", gpu) <= 16 * MIB + stat("over_limit_bytes.peak", gpu)


def check_graph_across_devices() -> None:
    """Sends and receives between two GPUs and the host, whose copies no call waits for."""
    simulate(devices=2)
    enable(12 * MIB, gpus=2)
    variables = []
    for index in range(6):
        with tf.device(f"GPU:{index % 2}"):
            variables.append(tf.Variable(data(index)))

    @tf.function
    def rotate() -> list[Any]:
        results = []
        for index, variable in enumerate(variables):
            value = variable.read_value()
            for device in (f"GPU:{(index + 1) % 2}", f"GPU:{index % 2}", "CPU:0", f"GPU:{(index + 1) % 2}"):
                with tf.device(device):
                    value = copied(value) if device != "CPU:0" else tf.identity(value)
            results.append(value)
        return results

    for _ in range(5):
        for index, result in enumerate(rotate()):
            same(result, data(index))
    for gpu in range(2):
        assert stat("in.blocks", gpu) > 0
        assert stat("pinned_bytes.current", gpu) == 0


def check_session() -> None:
    """A session asks for LMS in its ConfigProto, in a field that stock C++ does not know."""
    simulate()
    v1 = tf.compat.v1
    tf.config.experimental.set_lms_limit(16 * MIB)
    config = v1.ConfigProto()
    config.gpu_options.experimental.lms_enabled = True
    with tf.Graph().as_default(), tf.device("GPU:0"):
        variables = [v1.get_variable(f"v{i}", initializer=data(i), use_resource=True) for i in range(8)]
        copies = [copied(variable) for variable in variables]
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                for index, copy in enumerate(copies):
                    assert session.run(copy).tobytes() == data(index).tobytes()
    assert stat("limit_bytes") == 16 * MIB
    assert stat("in.blocks") > 0


def check_set_lms_enabled() -> None:
    simulate()
    tf.config.experimental.set_lms_enabled(True)
    with tf.device("GPU:0"):
        tensors = [tf.constant(data(i)) for i in range(8)]
        copies = [copied(tensor) for tensor in tensors]
        total = stat("limit_bytes")
        assert 700 * MIB < total < 1024 * MIB, total  # of 1 GiB, what is free less 5 %
        assert tf.experimental.get_bytes_in_use(0) >= 64 * MIB
        tf.config.experimental.set_lms_limit(16 * MIB)
        assert stat("resident_bytes.current") <= 16 * MIB
        for index, copy in enumerate(copies):
            same(copy, data(index))
    assert tf.experimental.get_peak_bytes_in_use(0) >= 64 * MIB
    assert tf.experimental.get_bytes_reclaimed(0) > 0
    assert tf.experimental.get_gpu_host_bytes_in_use(0) > 0
    tf.config.experimental.set_lms_limit(512 * MIB)
    tf.config.experimental.set_lms_enabled(False)
    assert stat("away_bytes.current") == 0
    before = stat("allocated_bytes.current")
    with tf.device("GPU:0"):
        later = copied(copies[0])
    same(later, data(0))
    assert stat("allocated_bytes.current") == before


def check_lists() -> None:
    """The elements of a list are paged as other tensors are; on 2.1, whose lists hide them, they stay."""
    simulate()
    enable(12 * MIB)
    with tf.device("GPU:0"):
        handle = tf.raw_ops.EmptyTensorList(element_shape=[MIB], max_num_elements=-1, element_dtype=tf.float32)
        for index in range(6):
            handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=copied(tf.constant(data(index))))
        others = [copied(tf.constant(data(10 + index))) for index in range(4)]
        for index in (3, 0, 5, 1, 4, 2):
            element = tf.raw_ops.TensorListGetItem(
                input_handle=handle, index=index, element_shape=[MIB], element_dtype=tf.float32
            )
            same(copied(element), data(index))
            del element
    for index, other in enumerate(others):
        same(other, data(10 + index))
    if tf.__version__.startswith("2.1."):
        assert stat("resident_bytes.current") >= 24 * MIB
    else:
        assert stat("out.blocks") >= 6
        assert stat("resident_bytes.current") <= 12 * MIB


def check_counters_of_the_older_implementation() -> None:
    """All twenty functions, for eight tensors of 4 MiB under a limit of four of them."""
    simulate()
    enable(16 * MIB)
    with tf.device("GPU:0"):
        tf.identity(tf.constant([1.0]))  # makes the device, and what TensorFlow's own allocator takes for it
        stock = memory_info("GPU:0")
        requests = tf.experimental.get_num_allocs(0)
        tensors = [tf.identity(tf.constant(data(i))) for i in range(8)]  # before 2.5 constants stay on the host
    expected = {
        "get_num_allocs": requests + 8,
        "get_bytes_in_use": 16 * MIB + stock["current"],
        "get_peak_bytes_in_use": 16 * MIB + stock["peak"],
        "get_bytes_active": 0,
        "get_peak_bytes_active": 16 * MIB,
        "get_bytes_inactive": 16 * MIB,
        "get_bytes_reclaimed": 16 * MIB,
        "get_current_bytes_reclaimed": 16 * MIB,
        "get_peak_bytes_reclaimed": 16 * MIB,
        "get_num_single_reclaims": 4,
        "get_num_full_reclaims": 0,
        "get_num_defragmentations": 0,
        "get_bytes_defragged": 0,
    }
    assert {name: getattr(tf.experimental, name)(0) for name in expected} == expected
    own = tf.experimental.get_largest_alloc_size(0)
    assert 0 < own <= tf.experimental.get_bytes_reserved(0) - 16 * MIB <= tf.experimental.get_bytes_limit(0)
    assert tf.experimental.get_bytes_reserved(0) <= tf.experimental.get_peak_bytes_reserved(0)
    assert tf.experimental.get_bytes_reservable_limit(0) == 0
    assert tf.experimental.get_gpu_host_bytes_in_use(0) >= 16 * MIB
    for index, tensor in enumerate(tensors):
        same(tensor, data(index))
    # Each that was away came back, and another left for it.
    assert tf.experimental.get_num_single_reclaims(0) >= 8
    assert tf.experimental.get_bytes_reclaimed(0) == tf.experimental.get_num_single_reclaims(0) * 4 * MIB
    assert tf.experimental.get_current_bytes_reclaimed(0) == 16 * MIB
    # Copies of what came back are kept as well.
    in_use = tf.experimental.get_gpu_host_bytes_in_use(0)
    assert 16 * MIB + stat("clean_bytes.current") <= in_use <= tf.experimental.get_gpu_host_peak_bytes_in_use(0)


def check_a_gpu_that_the_program_switches_itself() -> None:
    simulate()
    tf.config.experimental.set_lms_limit(16 * MIB)
    tf.config.experimental.set_lms_enabled(True)
    with tf.device("GPU:0"):
        tensor = copied(tf.constant(data(1)))
    tf.lms.enable("gpu:0", limit=32 * MIB, min_size=2 * MIB)
    tf.config.experimental.set_lms_limit(8 * MIB)
    assert stat("limit_bytes") == 32 * MIB
    tf.config.experimental.set_lms_enabled(False)
    assert tf.lms.is_enabled("gpu:0")
    same(tensor, data(1))


def check_relief_of_the_stock_allocator() -> None:
    """What is below min_size comes from BFC, for which the pager makes room when the device has none left."""
    simulate(memory=128 * MIB)
    os.environ["TF_DEVICE_MIN_SYS_MEMORY_IN_MB"] = "8"  # what BFC leaves alone; by default nearly all of 128 MiB
    enable(110 * MIB, min_size=4 * MIB)
    with tf.device("GPU:0"):
        large = [copied(tf.constant(data(index, 16))) for index in range(8)]
        small = [tf.constant(data(100 + index, 2)) for index in range(16)]
        for index, tensor in enumerate(small):
            same(tensor, data(100 + index, 2))
        for index, tensor in enumerate(large):
            same(tensor, data(index, 16))
    assert stat("out.bytes") >= 48 * MIB


def check_out_of_memory() -> None:
    simulate(memory=128 * MIB)
    enable(16 * MIB)
    with tf.device("GPU:0"):
        kept = tf.constant(data(1))
        large = tf.constant(data(2, 70))
        try:
            copied(large)
        except tf.errors.ResourceExhaustedError as error:
            assert "LMS" in str(error), error
        else:
            raise AssertionError("twice 70 MiB on a device of 128 MiB")
        same(copied(kept), data(1))
        same(large, data(2, 70))
    assert stat("pinned_bytes.current") == 0


def check_limits_that_cannot_be() -> None:
    simulate()
    try:
        tf.lms.enable("gpu:7", limit=MIB)
    except ValueError as error:
        assert "gpu:7" in str(error), error
    else:
        raise AssertionError("there is no such GPU")
    enable(1 << 40)
    try:
        tf.constant(1.0)
    except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
        assert "LMS" in str(error), error
    else:
        raise AssertionError("a limit of more than the device has")


def check_two_devices_of_one_gpu() -> None:
    simulate()
    enable(16 * MIB)
    (gpu,) = tf.config.list_physical_devices("GPU")
    halves = [tf.config.LogicalDeviceConfiguration(memory_limit=256) for _ in range(2)]
    tf.config.set_logical_device_configuration(gpu, halves)
    tensors = []
    for index in range(10):
        with tf.device(f"GPU:{index % 2}"):
            tensors.append(copied(tf.constant(data(index))))
    for index, tensor in enumerate(tensors):
        with tf.device(f"GPU:{(index + 1) % 2}"):
            same(copied(tf.identity(tensor)), data(index))
    assert stat("in.blocks") > 0
