"""transformers: GPT-2 with gradient checkpointing, and gradients accumulated over two batches."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from trainers import Rows, arguments, outcome
from transformers import GPT2Config, GPT2LMHeadModel, Trainer


def run(rank: int) -> Any:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_embd=256 * SCALE, n_layer=4, n_head=4, n_positions=128))
    asked = arguments(max_steps=3, gradient_accumulation_steps=2, gradient_checkpointing=True, save_steps=3)
    trainer = Trainer(model, asked, train_dataset=Rows(48, 64, 4096))
    trainer.train()
    return outcome(trainer)
