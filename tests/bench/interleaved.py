"""Step times of two sides that train the same model in turn: one with LMS enabled and memory sufficient, one without.

Whatever else the machine does meets both sides alike, since their steps alternate.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

AMPLE = 1 << 40  # bytes: nothing ever has to leave


class Side(Protocol):
    """A process that trains one step each time it is asked to."""

    def step(self) -> tuple[float, Any]:
        """Returns the step's seconds and its loss."""

    def stop(self) -> dict[str, int]:
        """Returns LMS's statistics."""


class Forked:
    """Such a process, forked; it answers "step", and then "stop", over the connection that `train` gets first."""

    def __init__(self, train: Callable[..., None], *words: Any) -> None:
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=train, args=(other, *words))
        self.process.start()
        other.close()  # so that the end of the process is an error here, not a wait without end

    def step(self) -> tuple[float, float]:
        """Returns the step's seconds and its loss."""
        self.connection.send("step")
        answer: tuple[float, float] = self.connection.recv()
        return answer

    def stop(self) -> dict[str, int]:
        """Returns its statistics."""
        self.connection.send("stop")
        answer: dict[str, int] = self.connection.recv()
        self.end()
        return answer

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self.process.kill()
        self.process.join()


def compare(name: str, stock: Side, managed: Side, steps: int, warm_up: int) -> dict[str, Any]:
    """Times `steps` steps of both sides after the first `warm_up`. Their losses must agree to the bit."""
    sides = (stock, managed)
    seconds: tuple[list[float], list[float]] = ([], [])
    for step in range(warm_up + steps):
        losses = set()
        for index in (0, 1) if step % 2 else (1, 0):  # who goes first alternates too
            duration, loss = sides[index].step()
            losses.add(loss)
            if step >= warm_up:
                seconds[index].append(duration)
        if len(losses) != 1:
            raise SystemExit(f"{name}: losses differ at step {step}: {losses}")
    stock.stop()
    values = managed.stop()
    if values["out.bytes"]:
        raise SystemExit(f"{name}: {values['out.bytes']} bytes left although memory was sufficient")
    pairs = sorted(managed / stock for stock, managed in zip(*seconds, strict=True))
    medians = [statistics.median(one) for one in seconds]
    return {
        "model": name,
        "stock_seconds": medians[0],
        "lms_seconds": medians[1],
        "ratio": medians[1] / medians[0],
        "fastest_ratio": min(seconds[1]) / min(seconds[0]),
        "pair_ratio_quartiles": [pairs[len(pairs) // 4], pairs[len(pairs) // 2], pairs[3 * len(pairs) // 4]],
        "steps": steps,
        "managed_bytes": values["allocated_bytes.peak"],
    }


def report(names: Iterable[str], compared: Callable[[str], dict[str, Any]], file: Path | None) -> None:
    """Prints a line for each model, and writes all results to the file."""
    print(f"{'model':<12} {'stock':>9} {'LMS':>9} {'ratio':>7} {'fastest':>8}   quartiles of the pairs' ratios")
    results = []
    for name in names:
        result = compared(name)
        results.append(result)
        quartiles = " ".join(f"{value:.3f}" for value in result["pair_ratio_quartiles"])
        stock, managed = result["stock_seconds"] * 1e3, result["lms_seconds"] * 1e3
        ratios = f"{result['ratio']:7.3f} {result['fastest_ratio']:8.3f}"
        print(f"{name:<12} {stock:6.1f} ms {managed:6.1f} ms {ratios}   {quartiles}", flush=True)
    if file:
        file.write_text(json.dumps(results, indent=2) + "\n")
