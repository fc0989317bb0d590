"""What the programs with transformers' Trainer share."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    """Random tokens, with a class (`labels`), or for a language model (None)."""

    def __init__(self, count: int, length: int, words: int, labels: int | None = None) -> None:
        generator = torch.Generator().manual_seed(7)
        self.tokens = torch.randint(2, words, (count, length), generator=generator)
        self.labels = self.tokens if labels is None else torch.randint(labels, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": self.labels[index]}


def arguments(**others: Any) -> TrainingArguments:
    return TrainingArguments(
        "output",
        per_device_train_batch_size=8,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **others,
    )


def outcome(trainer: Trainer) -> Any:
    """The losses and gradients' norms of every step, and the parameters and what the optimizer keeps of them."""
    timeless = [
        {key: value for key, value in row.items() if not key.endswith(("runtime", "_per_second"))}
        for row in trainer.state.log_history
    ]
    return [timeless, trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]]
