"""Which GPU a program means, and what of LMS a program meets that asks for little of it or for nothing."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Any

import tensorflow as tf
from checks_gpu import MIB, copied, data, enable, simulate, stat
from tensorflow.python.client import session
from tensorflow.python.eager import context
from tensorflow.python.lms import _calls, _library


def raised(kind: type[Exception], call: Any, *words: str) -> None:
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def pinned(gpu: int = 0) -> int:
    return stat("pinned_bytes.current", gpu)


def limit_of_cpu() -> None:
    os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPU_BFC_MEM_LIMIT_IN_MB="64")


def watched() -> bool:
    return hasattr(session.tf_session.TF_SessionRun_wrapper, "__wrapped__")


def tells_addresses() -> bool:
    """Whether the release tells where a GPU has a tensor: since it has DLPack, 2.2."""
    return hasattr(tf.experimental, "dlpack")


def check_pin_with_a_hidden_gpu() -> None:
    """The program's GPU:0 is CUDA's number 1."""
    simulate(devices=2)
    hidden, visible = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices([visible], "GPU")
    tf.lms.enable(visible, limit=16 * MIB)
    assert tf.lms.is_enabled("gpu:1") and not tf.lms.is_enabled(hidden)
    with tf.device("GPU:0"):
        tensor, variable = copied(tf.constant(data(1))), tf.Variable(data(2))
    assert stat("allocated_bytes.current", 1) >= 8 * MIB
    gc.collect()
    if not tells_addresses():
        raised(RuntimeError, tf.lms.pin(tensor).__enter__, "TensorFlow 2.1")
        return
    with tf.lms.pin(tensor, variable):
        assert pinned(1) == 8 * MIB, tf.lms.stats(visible)
        tf.lms.reclaim("gpu:1")
        assert stat("resident_bytes.current", 1) == 8 * MIB
    assert pinned(1) == 0


def check_pin_on_two_devices_of_one_gpu() -> None:
    """The second GPU's number is 1, and so is that of a logical device that is on the first."""
    simulate(devices=2)
    enable(gpus=2)
    first, second = tf.config.list_physical_devices("GPU")
    half = tf.config.LogicalDeviceConfiguration(memory_limit=256)
    tf.config.set_logical_device_configuration(first, [half, half])
    tf.config.set_logical_device_configuration(second, [half])
    for logical, gpu in ((0, 0), (1, 0), (2, 1)):
        with tf.device(f"GPU:{logical}"):
            tensor = copied(tf.constant(data(logical)))
        if not tells_addresses():
            continue
        with tf.lms.pin(tensor):
            assert pinned(gpu) == 4 * MIB, logical
        assert pinned(gpu) == 0


def check_names() -> None:
    simulate(devices=2)
    enable(gpus=2)
    second = tf.config.list_physical_devices("GPU")[1]
    tf.lms.enable("gpu:1", limit=8 * MIB)
    for name in ("gpu:1", "GPU:1", "/physical_device:GPU:1", second):
        assert tf.lms.limit(name) == 8 * MIB
    assert tf.lms.limit("gpu") == 16 * MIB
    logical = tf.config.list_logical_devices("GPU")[1]
    with tf.device(logical.name):
        of_tensor = copied(tf.constant(data(1))).device
    for name in ("/device:GPU:1", "device:gpu:1", "/gpu:1", "/GPU:0", of_tensor, logical):
        for function in (tf.lms.limit, tf.lms.is_enabled, tf.lms.stats, tf.lms.disable, tf.lms.enable):
            raised(ValueError, lambda f=function, n=name: f(n), "logical device", "'gpu:N'", "list_physical_devices")
    assert tf.lms.is_enabled("gpu:0") and tf.lms.is_enabled("gpu:1")
    tf.lms.enable("/job:localhost/replica:0/task:0/device:CPU:0", limit=MIB)  # all of them are one
    assert tf.lms.limit("/device:CPU:1") == MIB
    raised(ValueError, lambda: tf.lms.enable("gpu:2"), "gpu:2", "2 GPU(s)")
    assert tf.experimental.get_bytes_in_use(2) == -1
    raised(TypeError, lambda: tf.experimental.get_bytes_in_use(True), "gpu_id: expected an int, got bool")


def check_sessions_without_lms() -> None:
    """They ask CUDA nothing on behalf of LMS, and leave nothing to do at exit."""
    simulate()
    calls = ctypes.CDLL("libcuda.so.1").sim_calls
    calls.restype, calls.argtypes = ctypes.c_uint64, [ctypes.c_char_p]
    counted = (b"cuDeviceGet", b"cuDeviceGetAttribute", b"cuDeviceGetName", b"cuDeviceTotalMem", b"cuCtxCreate")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as own:
        assert own.run(tf.constant(1.0) + 1.0) == 2.0
    # 2.1 itself asks for its XLA devices, so often.
    by_stock = [2, 22, 1, 1, 0] if tf.__version__.startswith("2.1.") else [0] * len(counted)
    assert [calls(name) for name in counted] == by_stock, [calls(name) for name in counted]
    assert context.context()._physical_devices is None  # what asks the driver for them
    assert _calls.shut_down_at_exit.cache_info().misses == 0
    assert not watched()
    tf.lms.enable("cpu", limit=MIB)
    assert _calls.shut_down_at_exit.cache_info().misses == 1
    assert watched()
    assert context.context()._physical_devices is None
    tf.lms.disable("cpu")
    assert not watched()


def check_set_lms_enabled_fails() -> None:
    """What it leaves enabled is watched, and nothing else."""
    simulate()
    limit_of_cpu()
    library = _library.load()
    set_enabled = library.lms_tensorflow_set_enabled

    def then_fails(enabled: int) -> int:
        assert set_enabled(enabled) == 0
        return 4  # LMS_UNSUPPORTED

    library.lms_tensorflow_set_enabled = then_fails
    for enabled in (True, False):
        raised(RuntimeError, lambda enabled=enabled: tf.config.experimental.set_lms_enabled(enabled))
        assert tf.lms.is_enabled("cpu") is enabled
        assert watched() is enabled


def check_set_lms_enabled_after_the_first_operation() -> None:
    """The CPU could, the GPU has a stock device by now: neither is enabled."""
    simulate()
    limit_of_cpu()
    with tf.device("GPU:0"):
        copied(tf.constant(data(1)))
    raised(RuntimeError, lambda: tf.config.experimental.set_lms_enabled(True), "before the first operation")
    assert not tf.config.experimental.get_lms_enabled()
    assert not tf.lms.is_enabled("cpu") and not tf.lms.is_enabled("gpu:0")
    assert not watched()
