"""Several processes on one GPU, whose memory they share: what one has the simulated driver refuses to the others."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from perceptrons import perceptron, sample
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from training import MIN_SIZE, parameters_and_gradients, results

MIB = 1 << 20
MEMORY = 64 * MIB  # of the GPU; what a process needs of it is more
PROCESSES, PHASES = 3, 3


def train(device: str) -> Iterator[Tensor]:
    models = [perceptron(device, seed) for seed in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False) for model in models]
    for step in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = model(sample(device, step)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss
    for model in models:
        yield from parameters_and_gradients(model)


def work(rank: int, folder: str) -> None:
    """Trains in some phases, and holds what it has in the others."""
    torch.lms.enable("cuda", share=torch.lms.Share(weight=1 + rank), min_size=MIN_SIZE)
    held = [sample("cuda", seed) for seed in range(8)]
    expected = results(train, "cpu")
    for phase in range(PHASES):
        if (rank + phase) % 2 == 0:
            for _ in range(2):
                for actual, wanted in zip(results(train, "cuda"), expected, strict=True):
                    assert torch.equal(actual, wanted)
        else:
            time.sleep(1)
    for seed, tensor in enumerate(held):
        assert torch.equal(tensor.cpu(), sample("cpu", seed))
    stats = torch.lms.stats("cuda")
    Path(folder, f"{rank}.out").write_text(f"{stats['out.bytes']} {stats['share.budget_bytes']}")


def check_train_three_processes_share_a_gpu() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(LMS_SHARE=f"{folder}/meet", SIM_CUDA_SHARED=f"{folder}/device", SIM_CUDA_MEMORY=str(MEMORY))
        spawn(work, (folder,), nprocs=PROCESSES)
        for rank in range(PROCESSES):
            out, budget = map(int, Path(folder, f"{rank}.out").read_text().split())
            assert out > 0 and 0 < budget < MEMORY, (rank, out, budget)
