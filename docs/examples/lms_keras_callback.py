"""LMS statistics of every training step of Keras's `fit`, as rows of a CSV file.

model.fit(data, callbacks=[LmsCallback(StepLog(tf.lms, "cpu", "steps.csv"))])
"""

from __future__ import annotations

import tensorflow as tf


class LmsCallback(tf.keras.callbacks.Callback):
    """Has a :class:`lms_step_log.StepLog` write a row after every batch that is trained with; Keras 2 and 3."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def on_train_batch_end(self, batch, logs=None):
        self.log()
