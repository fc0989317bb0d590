"""What runs with every release that LMS is for, from 2.1 and Python 3.7 on."""

from __future__ import annotations

import gc
import os

import numpy as np
import tensorflow as tf
from common import MIB, directory, raises
from tf_support import (
    away,
    data,
    enable,
    limit_of_bfc,
    models,
    no_faults,
    one_operation_at_a_time,
    pinned,
    same,
    same_as_stock,
    session_config,
    stat,
)

config = tf.config.experimental


def trained_the_same(name: str, fit: bool, limit: int) -> None:
    keras_models = models()
    keras_models.deterministic()
    one_operation_at_a_time()

    def work() -> tuple[list[float], str]:
        trainer = keras_models.make(name, scale=0.5)
        losses = trainer.fit(2) if fit else [trainer.step() for _ in range(2)]
        return losses, trainer.digest()

    same_as_stock(work, limit=limit * MIB, within=False)  # a convolution's workspace is several times the limit


def check_convnet() -> None:
    trained_the_same("convnet", fit=True, limit=16)


def check_lstm() -> None:
    trained_the_same("lstm", fit=False, limit=3)


def check_views() -> None:
    expected = data()
    enable()
    tensor = away(expected)
    for make in (np.asarray, memoryview, lambda tensor: tensor._numpy()):
        tf.lms.reclaim("cpu")
        view = make(tensor)
        assert pinned() == MIB
        with no_faults(), directory() as folder:
            np.asarray(view).tofile(os.path.join(folder, "view"))
            same(np.fromfile(os.path.join(folder, "view"), "float32"), expected)
        del view
        gc.collect()
        assert pinned() == 0
    with tf.lms.pin(tensor, tf.Variable(tf.constant(expected) + 1.0)):
        assert pinned() == 2 * MIB
    tf.lms.disable("cpu")
    same(tensor.numpy(), expected)


def in_session(proto: tf.compat.v1.ConfigProto | None) -> None:
    numbers = (np.arange(MIB // 4) % 1000).astype("float32")
    with tf.Graph().as_default(), tf.compat.v1.Session(config=proto) as session:
        given = tf.compat.v1.placeholder(tf.float32, numbers.shape)
        total = session.run(tf.add_n([given * float(index) for index in range(24)]), {given: numbers})
        if tf.lms.is_enabled("cpu"):
            assert pinned() == MIB
        same(total, numbers * sum(range(24)))


def check_switching() -> None:
    config.set_lms_enabled(True)  # has no effect
    assert not tf.lms.is_enabled("cpu")
    in_session(session_config())
    assert not tf.lms.is_enabled("cpu")
    config.set_lms_enabled(False)
    limit_of_bfc(8)
    config.set_lms_enabled(True)
    in_session(session_config())
    assert tf.lms.is_enabled("cpu") and tf.lms.limit("cpu") == 8 * MIB
    assert stat("allocated_bytes.peak") >= 8 * MIB
    config.set_lms_enabled(True)
    assert config.get_lms_enabled()
    in_session(session_config(False))
    config.set_lms_enabled(False)
    with raises(tf.errors.InvalidArgumentError, "set_lms_enabled(False)"):
        in_session(session_config())
    assert tf.experimental.get_bytes_reclaimed(0) == -1
    config.set_lms_defrag_enabled(True)
    assert config.get_lms_defrag_enabled()


def check_an_operation_that_fails() -> None:
    enable()
    values = away(data())
    for call in (lambda: tf.gather(values, [1, 1 << 30]), lambda: tf.debugging.assert_equal(values, values + 1.0)):
        with raises(tf.errors.InvalidArgumentError):
            call()
        assert pinned() == 0
    same(values.numpy(), data())
