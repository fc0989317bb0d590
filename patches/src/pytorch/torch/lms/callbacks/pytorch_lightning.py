"""A callback of Lightning's Trainer, for programs that import pytorch_lightning.

trainer = Trainer(..., callbacks=[LmsCallback()])
"""

from __future__ import annotations

from pytorch_lightning import Callback
from torch.lms.callbacks._lightning import LogsSteps


class LmsCallback(LogsSteps, Callback):
    __doc__ = LogsSteps.__doc__
