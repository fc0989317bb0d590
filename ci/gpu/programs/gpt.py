"""A transformer as in GPT, wide enough to keep a GPU busy, and one training step of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    """How large the model and its batch are."""

    width: int
    layers: int
    heads: int
    length: int  # tokens in a sequence
    batch: int  # sequences in a step
    vocabulary: int


class Layer(nn.Module):
    """A pre-norm decoder layer: causal self-attention, then a feed-forward network."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)
        self.feed_forward_norm = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.feed_forward_norm(x))))


class Gpt(nn.Module):
    """Takes tokens, one more of each sequence than it is long, and gives the loss of predicting each from those before.

    With `recompute` the activations of a layer are not kept but computed again for its backward pass.
    """

    def __init__(self, size: Size, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens[:, :-1]) + self.positions.weight
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())


def make(size: Size, recompute: bool = False) -> tuple[Gpt, torch.optim.Optimizer, Tensor]:
    """The seeded model, its optimiser and one batch, on the device."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Gpt(size, recompute)
        tokens = torch.randint(0, size.vocabulary, (size.batch, size.length + 1))
    # One parameter at a time: an optimiser that takes all of them in one operation needs all of them in memory at once.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=False)
    return model, optimizer, tokens
