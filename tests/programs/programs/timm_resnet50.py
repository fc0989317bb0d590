"""timm: ResNet-50 with its optimizer and augmentation, on small images; then inference."""

from __future__ import annotations

from typing import Any

import timm
import timm.optim
import torch
from scale import SCALE


def run(rank: int) -> Any:
    torch.manual_seed(0)
    model = timm.create_model("resnet50", num_classes=10, drop_path_rate=0.1)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
    losses = []
    for _ in range(3):
        x, y = torch.randn(8, 3, 64 * SCALE, 64 * SCALE), torch.randint(10, (8,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.save(model.state_dict(), "model.pt")
    model.load_state_dict(torch.load("model.pt", weights_only=True))
    with torch.no_grad():
        scores = model.eval()(torch.randn(4, 3, 64 * SCALE, 64 * SCALE))
    return [losses, scores, model.state_dict()]
