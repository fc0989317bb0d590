"""Training with LMS on and memory sufficient, against the stock allocator: what LMS costs when it is not needed.

``python tests/bench/train.py [--steps N] [--json FILE] [MODEL...]`` with an interpreter that has the patched wheel.
For each model two processes train side by side, one with LMS enabled and one that never enables it; their steps
alternate, so that whatever else the machine does meets both alike. The ratio is that of the medians; on a busy machine
that of the fastest steps says more. Single-threaded.
Both sides must agree to the bit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import interleaved
import tool_models
import torch

WARM_UP = 2  # steps: the first ones fill both allocators' caches


class Side:
    """A forked process that trains one step each time it is asked to."""

    def __init__(self, models: Any, name: str, managed: bool) -> None:
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=train, args=(models, name, managed, other))
        self.process.start()

    def step(self) -> tuple[float, float]:
        """Returns the step's seconds and its loss."""
        self.connection.send("step")
        answer: tuple[float, float] = self.connection.recv()
        return answer

    def stop(self) -> dict[str, int]:
        """Returns LMS's statistics."""
        self.connection.send("stop")
        answer: dict[str, int] = self.connection.recv()
        self.process.join()
        return answer


def train(models: Any, name: str, managed: bool, connection: Connection) -> None:
    if managed:
        torch.lms.enable("cpu", limit=interleaved.AMPLE)
    trainer = models.make(name)
    while connection.recv() == "step":
        begin = time.perf_counter()
        loss = trainer.step()
        connection.send((time.perf_counter() - begin, loss))
    connection.send(torch.lms.stats("cpu"))


def main() -> None:
    models = tool_models.load("models")
    parser = argparse.ArgumentParser(description="Step time with LMS on and memory sufficient, against stock.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(models.MODELS)}; all by default")
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each side (default %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if unknown := set(options.models) - set(models.MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {options.steps} interleaved steps, one thread")

    def compared(name: str) -> dict[str, Any]:
        sides = Side(models, name, managed=False), Side(models, name, managed=True)
        return interleaved.compare(name, *sides, options.steps, WARM_UP)

    interleaved.report(options.models or models.MODELS, compared, options.json)


if __name__ == "__main__":
    main()
