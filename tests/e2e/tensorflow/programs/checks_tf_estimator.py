"""What TensorFlow has until 2.15: Estimators, with LMS by the ConfigProto in their RunConfig, and Keras in graph mode; and both
as programs for TFLMS use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB, directory, raises
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


def hooked(make: Any) -> np.ndarray:
    """What an Estimator trained; its hook was made after it."""
    with directory() as folder:
        estimator = tf.estimator.Estimator(model, model_dir=folder)
        estimator.train(batches, hooks=make(), steps=3)
        return estimator.get_variable_value("weight")


def check_hooks_of_an_estimator() -> None:
    def version_2() -> list[Any]:
        from tensorflow_large_model_support import LMS

        hook = LMS(swapout_threshold=1, swapin_ahead=0, swapin_groupby=0, sync_mode=0)
        hook.batch_size = 1
        return [hook]

    def version_1() -> list[Any]:
        from tensorflow_large_model_support import LMSSessionRunHook

        return [LMSSessionRunHook({"GradientDescent"}, lb=3, debug=True)]

    def contrib() -> list[Any]:
        from tensorflow.contrib.lms import LMSHook

        return [LMSHook({"GradientDescent"}, excl_scopes={"Mean"})]

    expected = in_child(trained)
    limit_of_bfc(8)
    for make in (version_2, version_1, contrib):
        before = 0 if make is version_2 else stat("out.bytes")
        same(hooked(make), expected)
        assert stat("out.bytes") >= before + 8 * MIB and pinned() == 0


def fitted(make: Any) -> list[Any]:
    """What Keras trained in graph mode; the callbacks were made after the model."""
    v1.disable_v2_behavior()
    dense = [tf.keras.layers.Dense(512, activation="tanh", input_shape=(512,)) for _ in range(8)]
    found = tf.keras.Sequential(dense)
    found.set_weights(
        [data(weight.size / MIB * 4, seed=1).reshape(weight.shape) / 32 for weight in found.get_weights()]
    )
    found.compile("sgd", "mse")
    values = data(1).reshape(-1, 512)

    def generate() -> Any:
        while True:
            yield values, values

    words = {"steps_per_epoch": 3, "epochs": 2, "verbose": 0, "callbacks": make()}
    history = (found.fit_generator if hasattr(found, "fit_generator") else found.fit)(generate(), **words)
    return [history.history["loss"], *found.get_weights()]


def fitted_with(make: Any) -> None:
    expected = in_child(lambda: fitted(list))
    limit_of_bfc(24)
    tf.config.experimental.set_lms_limit(8 * MIB)
    same(fitted(make), expected)
    assert stat("out.bytes") >= 8 * MIB and pinned() == 0


def check_the_callback_in_graph_mode() -> None:
    def callbacks() -> list[Any]:
        from tensorflow_large_model_support import LMS

        lms = LMS(swapout_threshold=-1, swapin_groupby=-1, swapin_ahead=-1, sync_mode=0, serialization=["100:"])
        lms.batch_size = 1
        lms.excl_output_by_scopes = {"loss"}
        lms.excl_input_by_types = {"TanhGrad"}  # which are made later than the callback
        return [lms]

    fitted_with(callbacks)


def check_version_1s_callback_in_graph_mode() -> None:
    def callbacks() -> list[Any]:
        from tensorflow_large_model_support import LMSKerasCallback

        return [LMSKerasCallback(n_tensors=-1, lb=3)]

    fitted_with(callbacks)


def check_a_type_that_keras_does_not_make() -> None:
    def callbacks() -> list[Any]:
        from tensorflow_large_model_support import LMS

        lms = LMS()
        lms.excl_output_by_types = {"Nothing"}
        return [lms]

    tf.config.experimental.set_lms_limit(64 * MIB)
    with raises(ValueError, "excl_output_by_types", "'Nothing'"):
        fitted(callbacks)
