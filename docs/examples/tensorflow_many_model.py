"""Trains any of the models of tf.keras.applications on random images, with LMS or without.

    python tensorflow_many_model.py ResNet50 --batch 64 --limit 4G --csv steps.csv

Prints a table: what tensors needed, what was resident at most, bytes moved, and seconds. README.md beside this file says
more. Downloads no weights.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: it logs about the processor's instructions

import many_model
import numpy as np
import tensorflow as tf
from lms_keras_callback import LmsCallback

CLASSES = 1000


def known(name):
    """Whether tf.keras.applications has a model of that name."""
    return name[:1].isupper() and inspect.isfunction(getattr(tf.keras.applications, name, None))


def train(name, batch, log, options):
    """Takes `options.steps` steps, calls `log()` after each, and returns the last loss."""
    tf.keras.backend.clear_session()
    gc.collect()  # the model before this one
    getattr(tf.keras.utils, "set_random_seed", tf.random.set_seed)(0)  # the former from 2.7 on
    shape = (options.image_size, options.image_size, 3)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=shape, classes=CLASSES)
    compiled = {}
    if "jit_compile" in inspect.signature(model.compile).parameters:
        # Keras 3 has XLA compile the whole step otherwise, into one operation whose memory LMS does not see.
        compiled["jit_compile"] = False
    model.compile(
        optimizer=tf.keras.optimizers.SGD(1e-3, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),  # of these models' scores, which are probabilities
        **compiled,
    )
    random = np.random.RandomState(0)
    images, labels = random.randn(batch, *shape).astype("float32"), random.randint(0, CLASSES, batch)
    # Every epoch is one step, so Keras's loss of an epoch is that of the step.
    history = model.fit(
        images,
        labels,
        batch_size=batch,
        epochs=options.steps,
        shuffle=False,
        verbose=0,
        callbacks=[LmsCallback(log)],
    )
    return history.history["loss"][-1]


def main():
    parser = many_model.parser("Trains Keras's models on random images, with LMS or without.", ("cpu", "gpu"))
    options = parser.parse_args()
    gpus = tf.config.list_physical_devices("GPU")
    options.device = options.device or ("gpu" if gpus else "cpu")
    lms = getattr(tf, "lms", None)
    many_model.check(parser, options, lms, bool(gpus))
    if unknown := [name for name in options.models if not known(name)]:
        parser.error(f"no model of tf.keras.applications: {', '.join(unknown)}")
    tf.config.set_visible_devices(gpus[:1] if options.device == "gpu" else [], "GPU")
    if options.no_lms:
        lms = None
    else:
        many_model.enable(lms, options.device, options)
    return many_model.run(
        options,
        lms,
        options.device,
        lambda name, batch, log: train(name, batch, log, options),
        tf.errors.ResourceExhaustedError,
    )


if __name__ == "__main__":
    sys.exit(main())
