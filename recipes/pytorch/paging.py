"""Run in the package's own environment when it is built: training in a third of the memory gives the same numbers."""

from __future__ import annotations

import torch

_MIN_SIZE = 1 << 14  # bytes
_UNLIMITED = 1 << 50


def train() -> list[str]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.ones(16, 256)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def main() -> None:
    torch.set_num_threads(1)
    stock = train()
    torch.lms.enable("cpu", limit=_UNLIMITED, min_size=_MIN_SIZE)
    train()
    limit = torch.lms.stats("cpu")["allocated_bytes.peak"] // 3
    torch.lms.disable("cpu")
    torch.lms.enable("cpu", limit=limit, min_size=_MIN_SIZE)
    limited = train()
    moved = torch.lms.stats("cpu")["out.bytes"]
    torch.lms.disable("cpu")
    if limited != stock:
        raise SystemExit(f"losses differ: {stock} without Large Model Support, {limited} with it")
    if not moved:
        raise SystemExit("nothing was paged out")
    print(f"{limit} bytes are enough: {moved} bytes paged out, losses equal to the bit")


if __name__ == "__main__":
    main()
