"""What the checks of TensorFlow share. A check is a function ``check_*`` without arguments; it raises when it fails."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB, directory, in_fork, load


def models() -> ModuleType:
    return load("keras_models")


def enable(limit: int = 8 * MIB, **options: Any) -> None:
    tf.lms.enable("cpu", limit=limit, **options)


def stat(name: str) -> int:
    return tf.lms.stats("cpu")[name]


def pinned() -> int:
    return stat("pinned_bytes.current")


def data(mib: float = 1, seed: int = 0) -> np.ndarray:
    """Random contents that depend on the arguments alone."""
    return np.random.default_rng(seed).standard_normal(int(mib * MIB) // 4).astype("float32")


def page_out() -> None:
    """Pages out everything that may leave, and makes sure that something did."""
    tf.lms.reclaim("cpu")
    assert stat("away_bytes.current") > 0, tf.lms.stats("cpu")


def away(expected: np.ndarray) -> tf.Tensor:
    """A managed tensor of that contents whose block is away."""
    before = stat("away_bytes.current")
    tensor = tf.identity(tf.constant(expected) + 0.0)
    tf.lms.reclaim("cpu")
    assert stat("away_bytes.current") >= before + expected.nbytes, tf.lms.stats("cpu")
    return tensor


@contextmanager
def no_faults() -> Iterator[None]:
    """What runs inside must be foreseen by LMS: nothing is left to the fault handler."""
    before = stat("faults")
    yield
    assert stat("faults") == before, f"{stat('faults') - before} faults"


def same(actual: Any, expected: Any) -> None:
    """Equality to the bit of arrays in any nesting."""
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):  # noqa: B905  what Python 3.7 runs, too
            same(a, e)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            same(actual[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        assert actual.tobytes() == expected.tobytes() if expected.dtype != object else (actual == expected).all()
    else:
        assert actual == expected, (actual, expected)


def one_operation_at_a_time() -> None:
    """Has to be said before the first operation.

    Of several at once, one may become the only user of a tensor that it announced for reading, and write its result
    into it. Such a write is served by a fault, which is as it should be, and which cannot be foreseen.
    """
    tf.config.threading.set_inter_op_parallelism_threads(1)


def same_as_stock(
    work: Callable[[], Any],
    limit: int,
    oversubscribed: float = 2,
    released: bool = True,
    within: bool = True,
    foreseen: bool = True,
) -> None:
    """``work()`` with the stock allocator, then under LMS at that limit: the same bits, and much more than the limit.

    ``released``: whether nothing that lives afterwards is pinned. ``within``: whether no operation needs more than the
    limit. ``foreseen``: whether all that is used is announced, so that nothing is left to the fault handler.
    """
    expected = work()
    enable(limit)
    actual = work()
    same(actual, expected)
    found = tf.lms.stats("cpu")
    assert found["allocated_bytes.peak"] >= oversubscribed * limit, found
    assert found["out.bytes"] + found["clean_drop.bytes"] > 0, found
    assert found["device_bytes.peak"] <= limit or not within, found
    assert found["faults"] == 0 or not foreseen, found
    assert found["pinned_bytes.current"] == 0 or not released, found


def in_child(work: Callable[[], Any]) -> Any:
    """What ``work()`` returns in a forked child; to be called before the first operation."""
    with directory() as folder:
        path = os.path.join(folder, "result")

        def child() -> None:
            with open(path, "wb") as file:
                pickle.dump(work(), file)

        in_fork(child)
        with open(path, "rb") as file:
            return pickle.load(file)


def limit_of_bfc(mib: int) -> None:
    """Has to be said before the first operation makes the CPU device."""
    os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPU_BFC_MEM_LIMIT_IN_MB=str(mib))


def session_config(enabled: bool = True) -> Any:
    proto = tf.compat.v1.ConfigProto()
    proto.gpu_options.experimental.lms_enabled = enabled
    return proto


@contextmanager
def warnings_of_the_log() -> Iterator[list[str]]:
    """What is written to TensorFlow's log meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def through_socket(memory: Any) -> bytes:
    """What arrives when the system is given that memory to send."""
    sender, receiver = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        for part in iter(lambda: receiver.recv(1 << 16), b""):
            received.extend(part)

    thread = threading.Thread(target=receive)
    thread.start()
    with sender:
        sender.sendall(memory)
    thread.join()
    receiver.close()
    return bytes(received)
