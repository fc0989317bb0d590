"""MONAI: a 3-D U-Net with the Dice loss, and inference with a sliding window."""

from __future__ import annotations

from typing import Any

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from scale import SCALE


def run(rank: int) -> Any:
    torch.manual_seed(0)
    model = UNet(3, 1, 3, channels=[SCALE * width for width in (16, 32, 64, 128)], strides=(2, 2, 2), num_res_units=2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    criterion = DiceCELoss(to_onehot_y=True, softmax=True)
    losses = []
    for _ in range(3):
        x, y = torch.randn(2, 1, 32, 32, 32), torch.randint(3, (2, 1, 32, 32, 32))
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        whole = sliding_window_inference(torch.randn(1, 1, 56, 56, 56), (32, 32, 32), 2, model.eval(), overlap=0.25)
    return [losses, whole, model.state_dict()]
