"""Estimators, which TensorFlow has until 2.15: LMS by the ConfigProto in their RunConfig."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB, directory
from tf_support import data, in_child, limit_of_bfc, pinned, same, session_config, stat

v1 = tf.compat.v1


def batches() -> Any:
    return tf.data.Dataset.from_tensors(data()).repeat()


def model(features: Any, mode: str) -> Any:
    """Needs 24 MiB at once."""
    weight = v1.get_variable("weight", shape=features.shape, initializer=v1.zeros_initializer())
    parts = [tf.tanh(features * float(index) + weight) for index in range(24)]
    loss = tf.reduce_mean(tf.add_n(parts))
    train = v1.train.GradientDescentOptimizer(100.0).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def trained(session: Any = None) -> np.ndarray:
    with directory() as folder:
        run = tf.estimator.RunConfig(model_dir=folder, session_config=session)
        estimator = tf.estimator.Estimator(model, config=run)
        estimator.train(batches, steps=3)
        return estimator.get_variable_value("weight")


def check_an_estimator() -> None:
    expected = in_child(trained)
    assert expected.any()
    limit_of_bfc(8)
    actual = trained(session_config())
    same(actual, expected)
    assert tf.lms.is_enabled("cpu") and tf.lms.limit("cpu") == 8 * MIB
    assert stat("out.bytes") >= 8 * MIB and stat("allocated_bytes.peak") >= 16 * MIB and pinned() == 0
