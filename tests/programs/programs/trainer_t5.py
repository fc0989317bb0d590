"""transformers: T5, an encoder and a decoder, with Adafactor."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from trainers import Rows, arguments, outcome
from transformers import T5Config, T5ForConditionalGeneration, Trainer


def run(rank: int) -> Any:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=4096,
        d_model=256 * SCALE,
        d_ff=1024 * SCALE,
        d_kv=64,
        num_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
    )
    asked = arguments(max_steps=3, save_steps=3, optim="adafactor")
    trainer = Trainer(T5ForConditionalGeneration(config), asked, train_dataset=Rows(24, 48, 4096))
    trainer.train()
    return outcome(trainer)
