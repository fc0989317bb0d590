"""A residual network of bottleneck blocks, with widths that are no powers of two, and one training step of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTHS = (96, 192, 384)  # of the stages' 3x3 convolutions
_BLOCKS = 3  # in each stage
_EXPANSION = 4  # a block's output is that much wider than its inside
_CLASSES = 100
_BATCH, _PIXELS = 12, 160


def _normalised(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size up to the stride, and batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut, which is a convolution where the shapes differ."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = _EXPANSION * width
        self.body = nn.Sequential(
            _normalised(inputs, width, 1),
            nn.ReLU(),
            _normalised(width, width, 3, stride),
            nn.ReLU(),
            _normalised(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _normalised(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Takes images and their labels, and gives the loss."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        # Windows that do not overlap: where they do, a kernel may add up atomically in the backward pass.
        self.stem = nn.Sequential(_normalised(3, widths[0], 7, 2), nn.ReLU(), nn.MaxPool2d(2))
        blocks = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(_BLOCKS):
                blocks.append(Bottleneck(inputs, width, 2 if stage > 0 and block == 0 else 1))
                inputs = _EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, _CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(self.stem(images))
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


def make(scale: float) -> tuple[ResNet, torch.optim.Optimizer, Tensor, Tensor]:
    """The seeded model, its optimiser, and one batch of images with labels, on the device. `scale` is of the widths."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = ResNet(tuple(3 * max(1, int(width / 3 * scale)) for width in _WIDTHS))
        images = torch.randn(_BATCH, 3, _PIXELS, _PIXELS)
        labels = torch.randint(0, _CLASSES, (_BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    return model, optimizer, images, labels
