"""Training with LMS on and memory sufficient, against the stock allocator: what LMS costs when it is not needed.

``python tests/bench/train.py [--steps N] [--json FILE] [MODEL...]`` with an interpreter that has the patched wheel.
For each model two processes train side by side, one with LMS enabled and one that never enables it; their steps
alternate, so that whatever else the machine does meets both alike. The ratio is that of the medians; on a busy machine
that of the fastest steps says more. Single-threaded.
Both sides must agree to the bit.
"""

from __future__ import annotations

import argparse
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import interleaved
import tool_models
import torch

WARM_UP = 2  # steps: the first ones fill both allocators' caches


def train(connection: Connection, models: Any, name: str, managed: bool) -> None:
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
        sides = [interleaved.Forked(train, models, name, managed) for managed in (False, True)]
        return interleaved.compare(name, *sides, options.steps, WARM_UP)

    interleaved.report(options.models or models.MODELS, compared, options.json)


if __name__ == "__main__":
    main()
