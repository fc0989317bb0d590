"""Trains a small model with transformers' Trainer and prints what its loggers saw, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.lms.callbacks.transformers import LmsCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Reporter(TrainerCallback):
    """Stands for TensorBoard and the like: it is asked before the program's own callbacks."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.append(dict(logs))


torch.manual_seed(0)
limit = int(sys.argv[1])
if limit:
    torch.lms.enable("cpu", limit=limit)
config = {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 4096, "n_positions": 64}
model = GPT2LMHeadModel(GPT2Config(**config, bos_token_id=0, eos_token_id=0))
rows = [torch.randint(4096, (64,)) for _ in range(16)]
arguments = TrainingArguments(
    sys.argv[2],
    max_steps=3,
    per_device_train_batch_size=4,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
data = [{"input_ids": row, "labels": row} for row in rows]
reporter = Reporter()
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[reporter, LmsCallback()])
trainer.train()
Path(sys.argv[3]).write_text(json.dumps({"seen": reporter.seen, "history": trainer.state.log_history}))
