"""What the callbacks for both of Lightning's packages do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.lms._steps import STATISTICS, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable


class LogsSteps:
    """Logs LMS's statistics of every step that trains, to the loggers and, if asked to, the progress bar.

    Names and units are those of docs/statistics.md, as in "lms/cpu/out.bytes". Lightning decides how often what is logged is
    written (``log_every_n_steps``); a value is that of one step. The peaks of :func:`torch.lms.stats` are reset at each.

    :param statistics: their names.
    :param progress_bar: whether the progress bar shows them, too.
    :raises ValueError: there is no such statistic.
    """

    def __init__(self, statistics: Iterable[str] = STATISTICS, progress_bar: bool = False) -> None:
        super().__init__()
        self._steps = Steps(statistics)
        self._progress_bar = progress_bar

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        self._steps.end()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        found = {name: float(value) for name, value in self._steps.end().items()}
        pl_module.log_dict(found, on_step=True, on_epoch=False, prog_bar=self._progress_bar)
