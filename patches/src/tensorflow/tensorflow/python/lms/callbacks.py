"""A callback of Keras, 2 and 3: ``model.fit(..., callbacks=[tf.lms.callbacks.LmsCallback()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ._steps import STATISTICS, Steps, counts

if TYPE_CHECKING:
    from collections.abc import Iterable


class LmsCallback(tf.keras.callbacks.Callback):
    """Adds LMS's statistics to the logs that Keras gives its callbacks, and so to CSVLogger, TensorBoard and the history.

    The logs of a batch have those of the step, and the logs of an epoch their sums, or the highest where a statistic
    does not count. Names and units are those of docs/statistics.md, as in "lms/cpu/out.bytes". Put it before the
    callbacks that shall see them. The peaks of :func:`tf.lms.stats` are reset after every batch.

    :param statistics: their names.
    :raises ValueError: there is no such statistic.
    """

    def __init__(self, statistics: Iterable[str] = STATISTICS) -> None:
        super().__init__()
        self._supports_tf_logs = True  # so that Keras 2 shows it the logs that its history gets, and no copy
        self._steps = Steps(statistics)
        self._epoch: dict[str, int] = {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = {}

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps.end()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        found = self._steps.end()
        for name, value in found.items():
            before = self._epoch.get(name, 0)
            self._epoch[name] = before + value if counts(name.rpartition("/")[2]) else max(before, value)
        if logs is not None:
            logs.update(found)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs.update(self._epoch)
