"""Memory that leaves TensorFlow without a copy: NumPy, buffers, DLPack, sessions, files, sockets."""

from __future__ import annotations

import gc
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB, directory, raises, spoil
from tf_support import away, data, enable, no_faults, pinned, same, stat, through_socket

dlpack = tf.experimental.dlpack


def pressure() -> None:
    """Uses more than the limit, so that whatever may leave does."""
    parts = [tf.fill((MIB // 4,), float(index)) for index in range(2 * tf.lms.limit("cpu") // MIB)]
    assert all(float(part[0]) == index for index, part in enumerate(parts))
    tf.lms.reclaim("cpu")


VIEWS = {
    "asarray": np.asarray,
    "memoryview": memoryview,
    "__array__": lambda tensor: tensor.__array__(),
    "_numpy": lambda tensor: tensor._numpy(),
    "slice": lambda tensor: np.asarray(tensor)[:],
    "dlpack": lambda tensor: dlpack.to_dlpack(tensor),
}


def check_views_stay_resident() -> None:
    expected = data()
    enable()
    for name, make in VIEWS.items():
        tensor = away(expected)
        with no_faults():
            view = make(tensor)
            assert pinned() == MIB, name
            del tensor  # the view alone keeps it
            pressure()
            if name == "dlpack":
                view = dlpack.from_dlpack(view)
                assert pinned() == MIB
                same(view.numpy(), expected)
            else:
                same(np.asarray(view), expected)
        del view
        gc.collect()
        assert pinned() == 0 and stat("allocated_bytes.current") == 0, name


def check_copies_do_not_pin() -> None:
    expected = data()
    enable()
    for make in (lambda tensor: tensor.numpy(), np.array):
        copy = make(away(expected))
        assert pinned() == 0
        same(copy, expected)


def check_system_calls() -> None:
    expected = data()
    enable()
    with directory() as folder, no_faults():
        with open(f"{folder}/raw", "wb", buffering=0) as file:
            assert file.write(memoryview(away(expected))) == MIB
        np.asarray(away(expected)).tofile(f"{folder}/to")
        np.save(f"{folder}/save.npy", away(expected))
        for name in ("raw", "to"):
            same(np.fromfile(f"{folder}/{name}", "float32"), expected)
        same(np.load(f"{folder}/save.npy"), expected)
        assert through_socket(memoryview(away(expected))) == expected.tobytes()


def check_sessions() -> None:
    enable()
    expected = data()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, directory() as folder:
        given = tf.compat.v1.placeholder(tf.float32, expected.shape)
        total, tripled = tf.reduce_sum(given), given * 3
        run = session.run([total, {"tripled": tripled}], {given: expected})[1]["tripled"]
        call = session.make_callable(tripled, [given])(expected)
        pressure_in_session = session.run(given + 1, {given: np.zeros_like(expected)})
        del pressure_in_session
        tf.lms.reclaim("cpu")
        with no_faults():
            for array in (run, call):
                array.tofile(f"{folder}/array")
                same(np.fromfile(f"{folder}/array", "float32"), expected * np.float32(3))
        assert pinned() == 2 * MIB
        del run, call, array
        assert pinned() == 0


def check_functions_of_the_program() -> None:
    enable()
    expected = data()
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append(np.asarray(value))
        return np.float32(1)

    @tf.function
    def both(value: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(look, [value], tf.float32) + tf.py_function(look, [value], tf.float32)

    assert float(both(away(expected))) == 2
    pressure()
    with no_faults():
        for array in seen:
            same(array, expected)
    del array
    seen.clear()
    gc.collect()
    assert pinned() == 0


def check_data_as_arrays() -> None:
    enable()
    rows = data(4).reshape(4, -1)
    arrays = list(tf.data.Dataset.from_tensor_slices(rows).map(lambda row: row + 1).as_numpy_iterator())
    pressure()
    with no_faults():
        same(arrays, list(rows + np.float32(1)))
    assert pinned() == 4 * MIB
    del arrays
    assert pinned() == 0


def outcome(make: Any) -> Any:
    try:
        value = make()
    except (TypeError, ValueError, BufferError, tf.errors.OpError) as error:
        return type(error), str(error)
    if isinstance(value, memoryview):
        return value.readonly, value.format, value.shape, value.tobytes()
    return value.dtype.str, value.shape, value.flags.writeable, value.tobytes()


def check_views_are_as_stock() -> None:
    cases = [
        lambda: memoryview(tf.constant(data())),
        lambda: memoryview(tf.constant(3)),
        lambda: memoryview(tf.zeros((0, 5))),
        lambda: np.asarray(tf.constant(data())),
        lambda: np.asarray(tf.constant(data()), dtype="float64"),
        lambda: np.asarray(tf.constant(["a", "b"])),
        lambda: np.asarray(tf.cast(data(), tf.bfloat16)).astype("float32"),
        lambda: np.asarray(tf.constant(data()) > 0),
        lambda: tf.constant(data())._numpy(),
        lambda: np.asarray(tf.Variable(data())),
        lambda: np.asarray(tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=1, element_dtype=tf.int32)),
        lambda: io.BytesIO(bytes(4)).readinto(tf.constant([1])),
    ]
    stock = [outcome(case) for case in cases]
    enable()
    assert [outcome(case) for case in cases] == stock
    tf.lms.disable("cpu")
    assert [outcome(case) for case in cases] == stock


def check_what_was_spoilt_is_an_error() -> None:
    def gradient(tensor: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            square = tensor * tensor
        return tape.gradient(square, tensor)

    uses = [
        lambda tensor: tensor + 1,
        lambda tensor: tensor[0],
        lambda tensor: tf.reduce_sum(tensor),
        gradient,
        tf.function(lambda tensor: tensor * 2),
        tf.Variable,
        str,
        lambda tensor: tensor.numpy(),
        np.asarray,
        memoryview,
        lambda tensor: io.BytesIO().write(tensor),
        lambda tensor: tf.numpy_function(np.square, [tensor], tf.float32),
        lambda tensor: tf.py_function(tf.square, [tensor], tf.float32),
        lambda tensor: next(iter(tf.data.Dataset.from_tensors(tensor))),
        dlpack.to_dlpack,
    ]
    with directory() as folder:
        enable(64 * MIB, store=folder)
        tensors = [away(data(1, seed)) for seed in range(len(uses))]
        spoil(folder, len(uses))
        for use, tensor in zip(uses, tensors, strict=True):
            for _ in range(2):
                with raises((OSError, tf.errors.OpError), "wrong checksum", folder, "a block of 1048576 bytes"):
                    use(tensor)
        same((away(data(1, 99)) + 1).numpy(), data(1, 99) + np.float32(1))  # the rest goes on
        del tensor, tensors


def check_pin() -> None:
    expected = data()
    enable()
    tensor, variable = away(expected), tf.Variable(tf.constant(data(seed=1)) + 0.0)
    page = tf.lms.pin(tensor, variable, tf.constant("text"))
    with page:
        assert pinned() == 2 * MIB
        with page:
            pressure()
        assert pinned() == 2 * MIB
    assert pinned() == 0
    with raises(TypeError, "tensors[1]", "ndarray"):
        tf.lms.pin(tensor, expected)

    @tf.function
    def traced(value: tf.Tensor) -> tf.Tensor:
        with tf.lms.pin(value):
            return value + 1

    same(traced(tensor).numpy(), expected + np.float32(1))
    assert pinned() == 0
    from tensorflow.python.lms import _handout

    # Of a GPU's tensor nothing else says the address.
    assert _handout.address_on_device(tensor) == tensor._numpy().__array_interface__["data"][0]


def check_threads() -> None:
    expected = data()
    enable(limit=2 * MIB)

    def work(_: int) -> None:
        view = memoryview(tf.constant(expected) + 0.0)
        same(np.asarray(view), expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(80)))
    assert pinned() == 0


def check_disabling_puts_the_stock_functions_back() -> None:
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.framework import ops

    def functions() -> list[Any]:
        return [ops.EagerTensor._numpy_internal, pywrap_tf_session.TF_SessionRun_wrapper]

    stock = functions()
    enable()
    assert functions() != stock
    tensor = away(data())
    view, capsule = np.asarray(tensor), dlpack.to_dlpack(tensor)
    tf.lms.disable("cpu")
    assert functions() == stock
    same(view, data())
    same(dlpack.from_dlpack(capsule).numpy(), data())
    del view, capsule, tensor
    gc.collect()
    assert pinned() == 0 and stat("allocated_bytes.current") == 0
