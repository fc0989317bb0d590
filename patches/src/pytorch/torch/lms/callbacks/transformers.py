"""A callback of transformers' Trainer.

trainer = Trainer(..., callbacks=[LmsCallback()])
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.lms._steps import STATISTICS, Steps
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import TrainerControl, TrainerState, TrainingArguments


class LmsCallback(TrainerCallback):
    """Adds LMS's statistics to what Trainer logs, and so to the progress bar's lines, TensorBoard and the like.

    A log has what happened since the log before: ``logging_steps=1`` makes that every step. Names and units are those of
    docs/statistics.md, as in "lms/cpu/out.bytes". The peaks of :func:`torch.lms.stats` are reset at each log.

    :param statistics: their names.
    :raises ValueError: there is no such statistic.
    """

    def __init__(self, statistics: Iterable[str] = STATISTICS) -> None:
        self._steps = Steps(statistics)

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._go_first(sys._getframe(1).f_locals.get("self"))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._go_first(sys._getframe(1).f_locals.get("self"))
        self._steps.end()

    def _go_first(self, caller: object) -> None:
        # Callbacks see a log one after the other, and those that report it come before the program's own. Trainer tells
        # a callback nothing of the handler that calls it. To move back to the front is safe while it goes through them.
        if isinstance(caller, CallbackHandler):
            caller.callbacks.remove(self)
            caller.callbacks.insert(0, self)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        found = self._steps.end()
        if logs is not None:
            logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)
