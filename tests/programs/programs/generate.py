"""transformers: a saved Llama is loaded again and writes, the likeliest word, by beams and at random."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from transformers import LlamaConfig, LlamaForCausalLM


def run(rank: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=384 * SCALE,
        intermediate_size=1024 * SCALE,
        num_hidden_layers=4,
        num_attention_heads=6,
    )
    LlamaForCausalLM(config).save_pretrained("model")
    model = LlamaForCausalLM.from_pretrained("model").eval()
    prompt = torch.randint(3, 4096, (4, 24))
    asked: dict[str, Any] = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 12, "pad_token_id": 0}
    return [
        model.generate(prompt, do_sample=False, **asked),
        model.generate(prompt, do_sample=False, num_beams=3, **asked),
        model.generate(prompt, do_sample=True, top_k=50, **asked),
    ]
