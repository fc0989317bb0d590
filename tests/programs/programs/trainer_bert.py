"""transformers: its Trainer with every default (fused AdamW, checkpoints in safetensors), and on from a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from trainers import Rows, arguments, outcome
from transformers import BertConfig, BertForSequenceClassification, Trainer


def make() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=8192,
            hidden_size=256 * SCALE,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024 * SCALE,
        )
    )


def run(rank: int) -> Any:
    rows = Rows(32, 64, 8192, labels=2)
    first = Trainer(make(), arguments(max_steps=3, save_steps=2), train_dataset=rows)
    first.train()
    second = Trainer(make(), arguments(max_steps=4, save_steps=2), train_dataset=rows)
    second.train(resume_from_checkpoint="output/checkpoint-2")
    return [outcome(first), outcome(second)]
