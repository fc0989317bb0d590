"""One side of the comparison of training speeds: trains as many steps as it is asked to, and says how long they took.

Usage: side.py MODE WIDTH LAYERS HEADS LENGTH BATCH VOCABULARY. MODE: stock, lms:LIMIT[:MIN_SIZE] (bytes; a limit of 0
is the default, under which everything fits; a MIN_SIZE of 1 MiB is), save_on_cpu, checkpoint. Requests: `steps N`;
`link BYTES`, which times plain copies between the device and pinned memory, each way.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import torch
from answer import answer, requests
from gpt import Size, make

_MIN_SIZE = 1 << 20  # bytes, unless the mode says another


def enable(mode: str, device: str = "cuda") -> bool:
    """Enables LMS where the mode says so; whether it did."""
    managed = mode.startswith("lms:")
    if managed:
        limit, _, min_size = mode.partition(":")[2].partition(":")
        torch.lms.enable(device, limit=int(limit) or None, min_size=int(min_size or _MIN_SIZE))
    return managed


def saving(mode: str) -> contextlib.AbstractContextManager[Any]:
    """In which the forward pass saves tensors as the mode says."""
    return torch.autograd.graph.save_on_cpu(pin_memory=True) if mode == "save_on_cpu" else contextlib.nullcontext()


class Side:
    """The model in training, mixed precision in bfloat16."""

    def __init__(self, mode: str, size: Size) -> None:
        self.managed = enable(mode)
        self.mode = mode
        self.model, self.optimizer, self.tokens = make(size, recompute=mode == "checkpoint")

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        with saving(self.mode), torch.autocast("cuda", torch.bfloat16):
            loss = self.model(self.tokens)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def steps(self, count: int) -> dict[str, Any]:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            loss = self.step()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / count
        values: dict[str, Any] = {
            "seconds": seconds,
            "loss": float(loss.item()),
            "peak": torch.cuda.max_memory_allocated(),
        }
        if self.managed:
            values["statistics"] = torch.lms.stats("cuda")
        return values


def _link(nbytes: int) -> dict[str, float]:
    host = torch.zeros(nbytes, dtype=torch.uint8).pin_memory()
    device = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    best = {"out": float("inf"), "in": float("inf")}
    for _ in range(4):
        for way, target, source in (("out", host, device), ("in", device, host)):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best[way] = min(best[way], time.perf_counter() - begin)
    return {way: nbytes / seconds for way, seconds in best.items()}


def main(mode: str, size: Size) -> None:
    side = Side(mode, size)
    answer({"ready": True})
    while words := requests():
        answer(side.steps(int(words[1])) if words[0] == "steps" else _link(int(words[1])))


if __name__ == "__main__":
    main(sys.argv[1], Size(*map(int, sys.argv[2:8])))
