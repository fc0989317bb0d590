"""LMS statistics of every training step, as rows of a CSV file. For PyTorch and TensorFlow alike.

    log = StepLog(torch.lms, "cuda", "steps.csv")
    for batch in batches:
        train(batch)
        log()  # a row: what this step did

An object of this class takes and ignores arguments, so PyTorch can call it as a hook, too::

    optimizer.register_step_post_hook(log)  # a row for every step of the optimizer
    model.register_forward_hook(log)  # a row for every forward pass

For Keras there is a callback, in lms_keras_callback.py.
"""

from __future__ import annotations

import csv
import time


class StepLog:
    """Writes a row for every step. Use from one thread.

    Columns: the labels that :meth:`start` was given, `step` (1, 2, ...), `seconds` (wall clock since the row before), and
    every statistic: those that say how things stand (`*.current`, `limit_bytes`) at the end of the step, peaks
    (`*.peak`) within the step, and those that count (all others) by how much the step raised them. docs/statistics.md
    says what each means; sizes are in bytes.

    After each row the peaks are reset, for the process and not only for the log.

    :param lms: ``torch.lms`` or ``tf.lms``; None: time only, without LMS.
    :param device: as LMS calls it, for example ``"cuda"`` or ``"cpu"``.
    :param path: of the CSV file, which is overwritten; None: only :attr:`rows` are kept.
    """

    def __init__(self, lms, device, path=None):
        self._lms, self._device = lms, device
        self._file = None if path is None else open(path, "w", newline="", encoding="utf-8")  # noqa: SIM115  until close()
        self._writer = None
        self.start()

    def start(self, **labels):
        """Begins a run: steps count from 1 again, and its rows begin with `labels`, whose names are the same in every run."""
        self.rows = []  # of this run, as dictionaries
        self._labels = labels
        if self._lms is not None:
            self._lms.reset_peak_stats(self._device)
        self._before, self._time = self._statistics(), time.perf_counter()

    def __call__(self, *_arguments):
        """Writes the row of the step that ends now."""
        now, after = time.perf_counter(), self._statistics()
        row = {**self._labels, "step": len(self.rows) + 1, "seconds": round(now - self._time, 6)}
        for name, value in after.items():
            row[name] = value - self._before[name] if _counts(name) else value
        self.rows.append(row)
        if self._file is not None:
            if self._writer is None:
                self._writer = csv.DictWriter(self._file, list(row))
                self._writer.writeheader()
            self._writer.writerow(row)
            self._file.flush()  # a program that is killed in the next step leaves what was logged
        if self._lms is not None:
            self._lms.reset_peak_stats(self._device)
        self._before, self._time = after, time.perf_counter()

    def averages(self, after=1):
        """The mean of every column over the steps so far, without the first ones: in those everything is made.

        :param after: how many; with fewer steps all of them count.
        """
        rows = self.rows[after:] or self.rows
        names = [name for name in rows[0] if name not in self._labels and name != "step"] if rows else []
        return {name: sum(row[name] for row in rows) / len(rows) for name in names}

    def close(self):
        """Closes the file. Call it once, after the last step."""
        if self._file is not None:
            self._file.close()

    def _statistics(self):
        return {} if self._lms is None else self._lms.stats(self._device)


def _counts(name):
    """Whether a statistic rises with everything that happens; the others tell how things stand, or a peak."""
    return not name.endswith((".current", ".peak")) and name != "limit_bytes"
