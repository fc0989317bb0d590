"""What the program requests for all devices beside what it says of one; requests that paging out cannot serve."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from common import MIB, raises
from tf_support import data, limit_of_bfc, pinned, same, stat

config = tf.config.experimental


def check_a_limit_that_the_cpu_does_not_have() -> None:
    config.set_lms_limit(8 * MIB)
    config.set_lms_enabled(True)
    with raises(RuntimeError, "set_lms_enabled(False)"):
        config.set_lms_limit(0)
    assert config.get_lms_limit() == 8 * MIB == tf.lms.limit("cpu")


def check_a_device_that_the_program_switches_itself() -> None:
    config.set_lms_limit(8 * MIB)
    config.set_lms_enabled(True)
    tf.lms.enable("cpu", limit=32 * MIB, min_size=2 * MIB)
    config.set_lms_limit(4 * MIB)
    assert tf.lms.limit("cpu") == 32 * MIB
    config.set_lms_enabled(False)
    assert tf.lms.is_enabled("cpu")
    tf.lms.disable("cpu")
    config.set_lms_enabled(True)
    assert tf.lms.limit("cpu") == 4 * MIB
    config.set_lms_enabled(False)
    assert not tf.lms.is_enabled("cpu")


def check_a_limit_that_follows_ram() -> None:
    config.set_lms_limit("auto")
    config.set_lms_enabled(True)
    kept = [tf.constant(data(2, seed=index)) + 0.0 for index in range(4)]
    assert tf.lms.limit("cpu") > 64 * MIB
    assert tf.lms.reclaim("cpu") >= 8 * MIB  # to a folder on a disk
    same([each.numpy() for each in kept], [data(2, seed=index) for index in range(4)])
    config.set_lms_limit(4 * MIB)
    assert tf.lms.limit("cpu") == 4 * MIB
    config.set_lms_limit("auto")
    assert tf.lms.limit("cpu") > 64 * MIB
    config.set_lms_enabled(False)
    tf.lms.enable("cpu", limit="auto")
    assert tf.lms.limit("cpu") > 64 * MIB
    with raises(ValueError, "share", "limit 'auto'"):
        tf.lms.enable("cpu", limit="auto", share=True)


def check_small_tensors_that_do_not_fit() -> None:
    """BFC's own limit is not LMS's: nothing is paged out for a request that this could not help."""
    limit_of_bfc(8)
    tf.lms.enable("cpu", limit=64 * MIB, min_size=MIB)
    large = tf.constant(data(4)) + 0.0
    with raises(tf.errors.ResourceExhaustedError, "OOM"):
        kept = [tf.fill((MIB // 8,), float(index)) for index in range(32)]
        assert len(kept) == 32
    assert stat("out.bytes") == 0
    same(large.numpy(), data(4))


def check_copies_that_variables_get() -> None:
    """An update makes one where others have the buffer. It may leave at once, not only after it was read."""
    tf.lms.enable("cpu", limit=64 * MIB)
    variable = tf.Variable(data(4))
    before = variable.read_value()
    variable.assign_add(tf.ones_like(variable))
    assert stat("protected_bytes.current") == 0 and pinned() == 0
    tf.lms.reclaim("cpu")
    assert stat("resident_bytes.current") == 0
    same(before.numpy(), data(4))
    same(variable.numpy(), data(4) + 1)


def check_who_passed_the_limit_is_known() -> None:
    tf.lms.enable("cpu", limit=8 * MIB)
    assert tf.lms.over_limit_operation("cpu") == ""
    factor = tf.constant(data(6)) + 0.0
    assert tf.lms.over_limit_operation("cpu") == ""
    product = factor * 2.0
    assert tf.lms.over_limit_operation("cpu").split()[0] == "Mul" and stat("over_limit_bytes.peak") == 4 * MIB
    same(product.numpy(), factor.numpy() * 2)
    tf.lms.reset_peak_stats("cpu")
    assert tf.lms.over_limit_operation("cpu") == ""


def check_elements_that_kernels_of_lists_make() -> None:
    """They may leave at once, not only when some operation has had them as its input."""
    tf.lms.enable("cpu", limit=64 * MIB)
    shape = tf.constant([MIB // 4])
    items = tf.constant(data(4)) + 0.0
    handle = tf.raw_ops.TensorListFromTensor(tensor=tf.reshape(items, (4, -1)), element_shape=shape)
    twice = tf.raw_ops.AddN(inputs=[handle, handle])
    zeros = tf.raw_ops.ZerosLike(x=handle)
    assert stat("protected_bytes.current") == 0 and pinned() == 0
    assert stat("allocated_bytes.current") >= 12 * MIB
    tf.lms.reclaim("cpu")
    assert stat("resident_bytes.current") == 0
    for made, expected in ((twice, data(4) * 2), (zeros, np.zeros_like(data(4)))):
        stacked = tf.raw_ops.TensorListStack(
            input_handle=made, element_shape=shape, element_dtype=tf.float32, num_elements=-1
        )
        same(tf.reshape(stacked, (-1,)).numpy(), expected)
