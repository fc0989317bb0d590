"""Switching LMS on and off, before and after devices exist, by sessions; limits that cannot be kept; bad arguments."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB, directory, in_fork, raises
from tf_support import (
    away,
    data,
    enable,
    limit_of_bfc,
    page_out,
    pinned,
    same,
    session_config,
    stat,
    warnings_of_the_log,
)

config = tf.config.experimental


def chain(count: int = 24) -> list[np.ndarray]:
    """Makes more than 20 MiB of tensors that live at once, and uses them all again."""
    parts = [tf.constant(data(1, seed=index)) + 1.0 for index in range(count)]
    return [(first * second).numpy() for first, second in zip(parts, reversed(parts), strict=True)]


COUNTING = (np.arange(MIB // 4) % 1000).astype("float32")


def in_session(proto: Any = None) -> None:
    """Needs 24 MiB at once. Sums of whole numbers, so that the result is known to the bit."""
    with tf.Graph().as_default(), tf.compat.v1.Session(config=proto) as session:
        given = tf.compat.v1.placeholder(tf.float32, (MIB // 4,))
        parts = [given * float(index) for index in range(24)]
        same(session.run(tf.add_n(parts), {given: COUNTING}), COUNTING * sum(range(24)))


def check_enabled_before_devices_exist() -> None:
    limit_of_bfc(8)
    assert config.get_lms_enabled() is False
    config.set_lms_enabled(True)
    assert config.get_lms_enabled() is True and config.get_lms_limit() == 0
    results = chain()
    assert tf.lms.is_enabled("cpu") and tf.lms.limit("cpu") == 8 * MIB
    assert stat("out.bytes") > 0 and stat("device_bytes.peak") <= 8 * MIB
    config.set_lms_enabled(False)
    assert config.get_lms_enabled() is False and not tf.lms.is_enabled("cpu")
    config.set_lms_limit(64 * MIB)
    config.set_lms_enabled(True)
    assert tf.lms.limit("cpu") == 64 * MIB
    same(chain(), results)


def check_enabled_after_devices_exist() -> None:
    early = tf.constant(data()) + 0.0
    expected = chain()
    config.set_lms_limit(8 * MIB)
    config.set_lms_enabled(True)
    same(chain(), expected)
    assert stat("out.bytes") > 0
    tf.lms.reclaim("cpu")  # what was there before stays
    same(early.numpy(), data())
    config.set_lms_limit(4 * MIB)
    assert config.get_lms_limit() == 4 * MIB == tf.lms.limit("cpu")
    late = away(data(seed=1))
    config.set_lms_enabled(False)
    assert stat("away_bytes.current") == 0
    same(late.numpy(), data(seed=1))
    same(chain(), expected)


def check_without_a_limit_for_the_cpu() -> None:
    for use in (None, "0"):
        if use is not None:
            os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = use
            os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = "64"
        with warnings_of_the_log() as lines:
            config.set_lms_enabled(True)
            assert config.get_lms_enabled() is True and not tf.lms.is_enabled("cpu")
            in_session(session_config())
        words = ("TF_CPU_ALLOCATOR_USE_BFC=1", "TF_CPU_BFC_MEM_LIMIT_IN_MB", "set_lms_limit", "tf.lms.enable")
        about = [line for line in lines if "no effect" in line]
        assert len(about) == (use is None) and all(word in line for word in words for line in about), lines  # once
    config.set_lms_limit(4 * MIB)  # and from now on it has one
    assert tf.lms.is_enabled("cpu") and tf.lms.limit("cpu") == 4 * MIB
    config.set_lms_enabled(False)
    config.set_lms_limit(8 * MIB)
    assert not tf.lms.is_enabled("cpu")


def check_sessions_without_a_limit_for_the_cpu() -> None:
    with warnings_of_the_log() as lines:
        in_session(session_config())
        in_session(session_config())
    assert sum("no effect" in line for line in lines) == 1 and not tf.lms.is_enabled("cpu")
    tf.lms.enable("cpu", limit=4 * MIB)
    tf.lms.disable("cpu")
    config.set_lms_limit(4 * MIB)  # the program itself has said what is to be
    assert not tf.lms.is_enabled("cpu")


def check_defragmentation_is_accepted() -> None:
    assert config.get_lms_defrag_enabled() is False
    with warnings_of_the_log() as lines:
        config.set_lms_defrag_enabled(True)
        config.set_lms_defrag_enabled(True)
    assert config.get_lms_defrag_enabled() is True and len([line for line in lines if "defrag" in line]) == 1
    proto = session_config()
    proto.gpu_options.experimental.lms_defrag_enabled = True
    limit_of_bfc(8)
    in_session(proto)
    assert tf.lms.is_enabled("cpu")
    for namespace in (tf, tf.compat.v1, tf.compat.v2):
        assert namespace.config.experimental.set_lms_defrag_enabled is config.set_lms_defrag_enabled


def check_what_fails_with_stock_memory() -> None:
    limit_of_bfc(16)

    def work() -> list[np.ndarray]:
        parts = [tf.fill((MIB // 4,), float(index)) for index in range(40)]
        return [part.numpy() for part in parts]

    with raises(tf.errors.ResourceExhaustedError, "OOM"):
        work()
    config.set_lms_enabled(True)
    same(work(), [np.full(MIB // 4, float(index), "float32") for index in range(40)])


def check_sessions_ask_for_it() -> None:
    limit_of_bfc(8)
    for proto in (None, session_config(False)):
        with tf.Graph().as_default(), tf.compat.v1.Session(config=proto) as session:
            same(session.run(tf.fill((2,), 1.0)), np.ones(2, "float32"))
        assert not tf.lms.is_enabled("cpu")
    in_session(session_config())
    assert tf.lms.is_enabled("cpu") and stat("allocated_bytes.peak") >= 8 * MIB
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:  # NumPy shares the memory of what leaves
        given = tf.compat.v1.placeholder(tf.float32)
        array = session.run(given + 1.0, {given: data()})
        assert pinned() == MIB
        same(array, data() + np.float32(1))


def check_a_session_contradicts_the_program() -> None:
    limit_of_bfc(8)
    config.set_lms_enabled(True)
    in_session(session_config(False))  # a session that does not ask is no contradiction
    assert stat("out.bytes") > 0
    config.set_lms_enabled(False)
    with raises(tf.errors.InvalidArgumentError, "lms_enabled", "set_lms_enabled(False)"):
        in_session(session_config())
    assert not tf.lms.is_enabled("cpu")
    config.set_lms_enabled(True)
    in_session(session_config())


def check_the_message_has_the_field() -> None:
    from tensorflow.core.protobuf import config_pb2

    proto = session_config()
    again = config_pb2.ConfigProto.FromString(proto.SerializeToString())
    assert again == proto and again.gpu_options.experimental.lms_enabled
    assert not config_pb2.ConfigProto().gpu_options.experimental.lms_enabled
    # Pure Python takes the descriptor of each message out of the file's by where it begins and ends.
    program = (
        "from tensorflow.core.protobuf import config_pb2\n"
        "from google.protobuf import descriptor_pb2\n"
        "from google.protobuf.internal import api_implementation\n"
        "assert api_implementation.Type() == 'python'\n"
        "def check(message, expected):\n"
        "    own = descriptor_pb2.DescriptorProto()\n"
        "    message.CopyToProto(own)\n"
        "    assert own == expected, message.full_name\n"
        "    for inner in expected.nested_type:\n"
        "        check(message.nested_types_by_name[inner.name], inner)\n"
        "file = descriptor_pb2.FileDescriptorProto.FromString(config_pb2.DESCRIPTOR.serialized_pb)\n"
        "for message in file.message_type:\n"
        "    check(config_pb2.DESCRIPTOR.message_types_by_name[message.name], message)\n"
        f"proto = config_pb2.ConfigProto.FromString({proto.SerializeToString()!r})\n"
        "assert proto.gpu_options.experimental.lms_enabled\n"
        f"assert proto.SerializeToString() == {proto.SerializeToString()!r}\n"
    )
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_a_limit_below_the_largest_operation() -> None:
    left, right = data(4).reshape(1024, 1024), data(4, seed=1).reshape(1024, 1024)
    expected = (tf.constant(left) @ tf.constant(right)).numpy()
    enable(limit=2 * MIB)
    a, b = tf.identity(left) + 0.0, tf.identity(right) + 0.0
    same((a @ b).numpy(), expected)
    assert stat("over_limit_bytes.peak") >= 8 * MIB and stat("over_limit.requests") > 0
    assert pinned() == 0


def check_a_strict_limit() -> None:
    enable(limit=8 * MIB, strict=True)
    a, b = (tf.constant(data(3, seed=seed)) + 0.0 for seed in (0, 1))
    with raises(tf.errors.ResourceExhaustedError, "LMS"):
        a + b  # three times 3 MiB
    assert pinned() == 0
    same([a.numpy(), b.numpy()], [data(3), data(3, seed=1)])
    tf.lms.set_limit("cpu", 16 * MIB)
    same((a + b).numpy(), data(3) + data(3, seed=1))


def check_stores() -> None:
    for policy in ("lru", "iteration"):
        with directory() as folder:
            enable(limit=8 * MIB, store=folder, policy=policy)
            expected = [data(1, seed=index) + np.float32(1) for index in range(24)]
            same(chain(), [first * second for first, second in zip(expected, reversed(expected), strict=True)])
            tf.lms.disable("cpu")
    enable()
    with raises(ValueError, "store", "/nowhere"):
        enable(store="/nowhere")


def check_wrong_arguments() -> None:
    cases: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "limit", lambda: tf.lms.enable("cpu")),
        (ValueError, "'1.5GiB'", lambda: tf.lms.enable("cpu", limit=1.5)),
        (ValueError, "'8GiB'", lambda: tf.lms.enable("cpu", limit=8)),
        (ValueError, "'8GiB'", lambda: tf.lms.enable("cpu", limit="8 gigs")),
        (TypeError, "limit", lambda: tf.lms.enable("cpu", limit=True)),
        (ValueError, "limit", lambda: tf.lms.enable("cpu", limit=-1)),
        (ValueError, "min_size", lambda: tf.lms.enable("cpu", limit=MIB, min_size=0)),
        (TypeError, "strict", lambda: tf.lms.enable("cpu", limit=MIB, strict=1)),
        (ValueError, "policy", lambda: tf.lms.enable("cpu", limit=MIB, policy="fifo")),
        (TypeError, "device", lambda: tf.lms.enable(0, limit=MIB)),
        (ValueError, "device", lambda: tf.lms.enable("cpu:x", limit=MIB)),
        (ValueError, "'cpu' can", lambda: tf.lms.enable("tpu", limit=MIB)),
        (ValueError, "'cpu' can", lambda: tf.lms.enable("gpu")),
        (RuntimeError, "tf.lms.enable('cpu'", lambda: tf.lms.limit("cpu")),
        (RuntimeError, "tf.lms.enable('cpu'", lambda: tf.lms.reclaim("cpu")),
        (TypeError, "lms_enabled", lambda: config.set_lms_enabled(1)),
        (TypeError, "lms_defrag_enabled", lambda: config.set_lms_defrag_enabled(1)),
        (TypeError, "limit", lambda: config.set_lms_limit(None)),
        (ValueError, "limit", lambda: config.set_lms_limit(-1)),
        (TypeError, "gpu_id", lambda: tf.experimental.get_bytes_reclaimed("0")),
    ]
    for kind, word, call in cases:
        with raises(kind, word):
            call()
    assert not tf.lms.is_enabled("cpu") and not tf.lms.is_enabled("gpu:0") and not tf.lms.is_enabled("tpu")
    assert not any(tf.lms.stats("cpu").values())
    for name in ("cpu", "CPU:0", "/device:CPU:0", "/job:localhost/replica:0/task:0/device:CPU:0"):
        tf.lms.enable(name, limit=MIB)
        tf.lms.disable(name)
    (device,) = tf.config.list_physical_devices("CPU")
    tf.lms.enable(device, limit=3 * MIB)
    assert tf.lms.limit(tf.config.list_logical_devices("CPU")[0]) == 3 * MIB


STATISTICS = ["active", "defragged", "in_use", "inactive", "limit", "reclaimed", "reservable_limit", "reserved"]
COUNTERS = [
    *(f"get_bytes_{name}" for name in STATISTICS),
    *(f"get_peak_bytes_{name}" for name in ("active", "in_use", "reclaimed", "reserved")),
    *(f"get_num_{name}" for name in ("allocs", "defragmentations", "full_reclaims", "single_reclaims")),
    *("get_current_bytes_reclaimed", "get_largest_alloc_size"),
    *("get_gpu_host_bytes_in_use", "get_gpu_host_peak_bytes_in_use"),
]


def check_the_statistics_of_the_older_implementation() -> None:
    assert len(set(COUNTERS)) == 20
    with warnings_of_the_log() as lines:
        for name in COUNTERS:
            assert getattr(tf.experimental, name)(0) == -1
    assert len(lines) == 1 and lines[0].endswith(": -1"), lines
    for index in (0, 7, -1):
        for name in COUNTERS:
            for namespace in (tf.experimental, tf.compat.v1.experimental, tf.compat.v2.experimental):
                assert getattr(namespace, name)(index) == -1


def check_the_names_are_where_programs_expect_them() -> None:
    for namespace in (tf, tf.compat.v1, tf.compat.v2):
        for name in ("get_lms_enabled", "set_lms_enabled", "get_lms_limit", "set_lms_limit"):
            assert getattr(namespace.config.experimental, name) is getattr(config, name)
    assert tf.lms.__name__ == "tensorflow.python.lms" and set(tf.lms.__all__) <= set(dir(tf.lms))


def check_fork() -> None:
    enable()
    tensors = [tf.constant(data(1, seed=index)) + 0.0 for index in range(16)]
    views = [tensor.numpy for tensor in tensors]
    page_out()

    def child() -> None:
        # TensorFlow's own threads are not there, so what a child can do is read.
        for index, numpy in enumerate(views):
            same(numpy(), data(1, seed=index))

    in_fork(child)
    for index, tensor in enumerate(tensors):
        same((tensor * 1.0).numpy(), data(1, seed=index))
    in_fork(child)


def check_an_operation_that_fails() -> None:
    enable()
    singular, values = away(np.ones(MIB // 4, "float32")), away(data(1))

    def fail(value: np.ndarray) -> np.ndarray:
        raise ValueError("on purpose")

    for call in (
        lambda: tf.linalg.inv(tf.reshape(singular, (512, 512))),
        lambda: tf.gather(values, [1, 1 << 30]),
        lambda: tf.debugging.assert_equal(values, values + 1.0),
        lambda: tf.raw_ops.Reshape(tensor=values, shape=[3]),
        lambda: tf.function(lambda value: tf.numpy_function(fail, [value], tf.float32))(values),
    ):
        with raises(tf.errors.OpError):
            call()
        assert pinned() == 0
        page_out()
    same([singular.numpy(), values.numpy()], [np.ones(MIB // 4, "float32"), data(1)])


def check_a_cancelled_step() -> None:
    enable()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        queue = tf.queue.FIFOQueue(1, [tf.float32])
        given = tf.compat.v1.placeholder(tf.float32, (MIB // 4,))
        put = queue.enqueue(given + 1.0)
        take = queue.dequeue()
        session.run(put, {given: data()})
        options = tf.compat.v1.RunOptions(timeout_in_ms=200)
        for _ in range(3):
            with raises(
                tf.errors.DeadlineExceededError
            ):  # there is room for one: the operation waits with what it holds
                session.run(put, {given: data(seed=1)}, options=options)
        assert pinned() == 0
        tf.lms.reclaim("cpu")
        same(session.run(take), data() + np.float32(1))
        session.run(put, {given: data(seed=2)})
        same(session.run(take), data(seed=2) + np.float32(1))


def check_an_operation_that_waits() -> None:
    enable()
    queue = tf.queue.FIFOQueue(1, [tf.float32])
    queue.enqueue(tf.constant(data()) + 0.0)
    tensor = tf.constant(data(seed=1)) + 0.0

    @tf.function
    def put(value: tf.Tensor) -> tf.Tensor:  # a graph is called back, an eager operation keeps its thread
        queue.enqueue(value)
        return tf.constant(0)

    tf.lms.reclaim("cpu")
    assert pinned() == 0 and stat("away_bytes.current") == 2 * MIB
    thread = threading.Thread(target=put, args=(tensor,))  # there is room for one
    thread.start()
    give_up = time.monotonic() + 60
    while pinned() == 0 and time.monotonic() < give_up:
        time.sleep(0.01)
    for _ in range(3):  # more often than a pin that comes and goes could be met by chance
        tf.lms.reclaim("cpu")
        assert thread.is_alive() and pinned() == MIB and stat("away_bytes.current") == MIB, tf.lms.stats("cpu")
        time.sleep(0.01)
    first = queue.dequeue()
    thread.join()
    assert pinned() == 0
    page_out()
    same([first.numpy(), queue.dequeue().numpy(), tensor.numpy()], [data(), data(seed=1), data(seed=1)])
