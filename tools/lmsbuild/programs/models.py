"""Four small training programs: a convnet, a transformer, an LSTM and a 3-D U-Net.

They are what the end-to-end tests, the benchmarks and ``lmsbuild try`` train. Each is many layers of medium size rather
than a few giant ones, so that the largest single operation needs only a small part of the peak, and a limit of an
eighth of the peak still means something. Everything is seeded, and every operation they use is deterministic on the
CPU with a fixed number of threads: two runs of one configuration give the same bits. They run with torch 1.1 and Python
3.7, and everything later.

What they need, in MiB, of the tensors that LMS manages (64 KiB and more), and how long a step takes with the stock
allocator on one core of a small virtual machine; ``python models.py`` measures it, with a wheel that has LMS:

============ ====== =================== ========
model          peak   largest operation     step
============ ====== =================== ========
convnet       114.4                 9.0   0.31 s
transformer   116.9                 4.5   0.22 s
lstm          186.5                10.2   0.20 s
unet3d         93.0                 7.0   0.36 s
============ ====== =================== ========
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

MODELS: tuple[str, ...] = ("convnet", "transformer", "lstm", "unet3d")


class Trainer:
    """A model, its optimiser and one fixed batch. Not thread-safe."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> None:
        self.model = model
        self.optimizer = optimizer
        self._loss = loss

    def step(self) -> float:
        """Takes one optimiser step; returns the loss before it, exactly."""
        self.optimizer.zero_grad()
        loss = self._loss()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.item())

    def tensors(self) -> list[Tensor]:
        """The parameters, then their gradients: what two runs must agree on to the bit."""
        parameters = list(self.model.parameters())
        return [p.detach() for p in parameters] + [p.grad for p in parameters if p.grad is not None]


class _Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(y)))


class _Flatten(nn.Module):
    """What nn.Flatten is from 1.2 on."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def _convnet(scale: float) -> Trainer:
    width = max(4, int(16 * scale))
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *(_Residual(width) for _ in range(9)),
        nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
        *(_Residual(2 * width) for _ in range(9)),
        nn.AdaptiveAvgPool2d(4),
        _Flatten(),
        nn.Linear(32 * width, 10),
    )
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Trainer(model, optimizer, lambda: functional.cross_entropy(model(images), labels))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: the framework's own operation where there is one, which is from 2.0 on."""
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q.matmul(k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    later = torch.triu(torch.full((q.size(-2), k.size(-2)), float("-inf")), diagonal=1)
    return (scores + later).softmax(dim=-1).matmul(v)


def _gelu(x: Tensor) -> Tensor:
    if hasattr(functional, "gelu"):  # from 1.2 on
        return functional.gelu(x)
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class _Attention(nn.Module):
    """A pre-norm decoder layer as in GPT: causal self-attention, then a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        y = _attention(q, k, v)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(_gelu(self.up(self.feed_forward_norm(x))))


class _Transformer(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(_Attention(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _transformer(scale: float) -> Trainer:
    heads = max(1, int(6 * scale))
    model = _Transformer(vocabulary=512, length=128, width=32 * heads, heads=heads, layers=10)
    tokens = torch.randint(0, 512, (4, 129))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Trainer(
        model,
        optimizer,
        lambda: functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()),
    )


class _Recurrent(nn.Module):
    """A stack of bidirectional LSTM layers, each a module (and an operation) of its own."""

    def __init__(self, features: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(features if i == 0 else 2 * width, width, batch_first=True, bidirectional=True)
            for i in range(layers)
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


def _lstm(scale: float) -> Trainer:
    width = max(8, int(96 * scale))
    model = _Recurrent(features=64, width=width, layers=12, classes=10)
    sequences, labels = torch.randn(16, 48, 64), torch.randint(0, 10, (16,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Trainer(model, optimizer, lambda: functional.cross_entropy(model(sequences), labels))


class _Volume(nn.Module):
    """Two 3x3x3 convolutions with group normalisation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.LeakyReLU(0.1),
            nn.Conv3d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.LeakyReLU(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y


class _UNet3d(nn.Module):
    """Encoder and decoder over volumes; each level's activations are kept for the way back up."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_Volume(1, width), *(_Volume(width, width) for _ in range(6)))
        self.down1 = _Volume(width, 2 * width)
        self.down2 = _Volume(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = _Volume(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.merge1 = nn.Sequential(_Volume(2 * width, width), *(_Volume(width, width) for _ in range(6)))
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        level0 = self.stem(x)
        level1 = self.down1(functional.avg_pool3d(level0, 2))
        level2 = self.down2(functional.avg_pool3d(level1, 2))
        x = self.merge2(torch.cat([self.up2(level2), level1], dim=1))
        x = self.merge1(torch.cat([self.up1(x), level0], dim=1))
        logits: Tensor = self.head(x)
        return logits


def _unet3d(scale: float) -> Trainer:
    width = 4 * max(1, int(2 * scale))
    model = _UNet3d(width, classes=3)
    volumes, labels = torch.randn(2, 1, 16, 32, 32), torch.randint(0, 3, (2, 16, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Trainer(model, optimizer, lambda: functional.cross_entropy(model(volumes), labels))


_MAKERS: dict[str, Callable[[float], Trainer]] = {
    "convnet": _convnet,
    "transformer": _transformer,
    "lstm": _lstm,
    "unet3d": _unet3d,
}


def make(name: str, seed: int = 0, scale: float = 1.0) -> Trainer:
    """Builds a model with its optimiser and data.

    :param name: one of :data:`MODELS`.
    :param seed: seed of PyTorch's generator, which is set by this call: parameters and data follow from it.
    :param scale: multiplies the width of every layer; the peak grows about in proportion.
    :raises ValueError: ``name`` is not one of :data:`MODELS`.
    """
    if name not in _MAKERS:
        raise ValueError(f"name: {name!r} is not one of {', '.join(MODELS)}")
    torch.manual_seed(seed)
    return _MAKERS[name](scale)


def _measure(name: str) -> str:
    """A row of the table above."""
    trainer = make(name)
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        trainer.step()
        seconds.append(time.perf_counter() - begin)
    torch.lms.enable("cpu", limit=1 << 40)
    torch.lms.reset_peak_stats("cpu")
    trainer = make(name)
    trainer.step()
    trainer.step()
    peak = torch.lms.stats("cpu")["allocated_bytes.peak"]
    torch.lms.set_limit("cpu", 0)  # now only what an operation holds is resident
    torch.lms.reset_peak_stats("cpu")
    trainer.step()
    largest = torch.lms.stats("cpu")["device_bytes.peak"]
    torch.lms.disable("cpu")
    return f"{name:<12} {peak / 2**20:6.1f} {largest / 2**20:18.1f} {sorted(seconds)[2]:9.2f} s"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"{'model':<12} {'peak':>6} {'largest operation':>18} {'step':>11}")
    for model_name in MODELS:
        print(_measure(model_name))
