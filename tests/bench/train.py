"""Training with LMS on and memory sufficient, against the stock allocator: what LMS costs when it is not needed.

``python tests/bench/train.py [--steps N] [--json FILE] [MODEL...]`` with an interpreter that has the patched wheel.
For each model two processes train side by side, one with LMS enabled and one that never enables it; their steps
alternate, so that whatever else the machine does meets both alike. The ratio is that of the medians; on a busy machine
that of the fastest steps says more. Single-threaded.
Both sides must agree to the bit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

MODELS = Path(__file__).resolve().parents[2] / "tools" / "lmsbuild" / "models.py"
AMPLE = 1 << 40  # bytes: nothing ever has to leave
WARM_UP = 2  # steps: the first ones fill both allocators' caches


def load_models() -> Any:
    spec = importlib.util.spec_from_file_location("models", MODELS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        torch.lms.enable("cpu", limit=AMPLE)
    trainer = models.make(name)
    while connection.recv() == "step":
        begin = time.perf_counter()
        loss = trainer.step()
        connection.send((time.perf_counter() - begin, loss))
    connection.send(torch.lms.stats("cpu"))


def compare(models: Any, name: str, steps: int) -> dict[str, Any]:
    stock, managed = Side(models, name, managed=False), Side(models, name, managed=True)
    seconds: dict[Side, list[float]] = {stock: [], managed: []}
    for step in range(WARM_UP + steps):
        losses = set()
        for side in (stock, managed) if step % 2 else (managed, stock):  # who goes first alternates too
            duration, loss = side.step()
            losses.add(loss)
            if step >= WARM_UP:
                seconds[side].append(duration)
        if len(losses) != 1:
            raise SystemExit(f"{name}: losses differ at step {step}: {losses}")
    stock.stop()
    values = managed.stop()
    if values["out.bytes"]:
        raise SystemExit(f"{name}: {values['out.bytes']} bytes left although memory was sufficient")
    pairs = sorted(a / b for a, b in zip(seconds[managed], seconds[stock], strict=True))
    return {
        "model": name,
        "stock_seconds": statistics.median(seconds[stock]),
        "lms_seconds": statistics.median(seconds[managed]),
        "ratio": statistics.median(seconds[managed]) / statistics.median(seconds[stock]),
        "fastest_ratio": min(seconds[managed]) / min(seconds[stock]),
        "pair_ratio_quartiles": [pairs[len(pairs) // 4], pairs[len(pairs) // 2], pairs[3 * len(pairs) // 4]],
        "steps": steps,
        "managed_bytes": values["allocated_bytes.peak"],
    }


def main() -> None:
    models = load_models()
    parser = argparse.ArgumentParser(description="Step time with LMS on and memory sufficient, against stock.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(models.MODELS)}; all by default")
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each side (default %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if unknown := set(options.models) - set(models.MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {options.steps} interleaved steps, one thread")
    print(f"{'model':<12} {'stock':>9} {'LMS':>9} {'ratio':>7} {'fastest':>8}   quartiles of the pairs' ratios")
    results = []
    for name in options.models or models.MODELS:
        result = compare(models, name, options.steps)
        results.append(result)
        quartiles = " ".join(f"{value:.3f}" for value in result["pair_ratio_quartiles"])
        stock, managed = result["stock_seconds"] * 1e3, result["lms_seconds"] * 1e3
        print(
            f"{name:<12} {stock:6.1f} ms {managed:6.1f} ms {result['ratio']:7.3f} {result['fastest_ratio']:8.3f}   {quartiles}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
