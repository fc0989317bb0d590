"""peft: LoRA on a GPT-2; the adapter is saved, loaded onto the bare model, and merged into it."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from scale import SCALE
from transformers import GPT2Config, GPT2LMHeadModel


def make() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_embd=256 * SCALE, n_layer=4, n_head=4, n_positions=64))


def run(rank: int) -> Any:
    model = get_peft_model(make(), LoraConfig(r=8, target_modules=["c_attn", "c_fc"], lora_dropout=0.1))
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), 1e-3)
    losses = []
    for _ in range(3):
        tokens = torch.randint(4096, (8, 48))
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    model.save_pretrained("adapter")
    merged = PeftModel.from_pretrained(make(), "adapter").merge_and_unload().eval()
    return [losses, merged.state_dict(), merged(tokens).logits]
