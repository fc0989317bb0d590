"""Keras training with LMS on and memory sufficient, against the stock allocator: what LMS costs when it is not needed.

``python tests/bench/keras_train.py [--steps N] [--stock PYTHON] [--json FILE] [MODEL...]`` with an interpreter that has
the patched TensorFlow. For each model two processes train side by side, one with LMS enabled and one that never enables
it (with ``--stock``, by an interpreter that has the official wheel); their steps alternate, so that whatever else the
machine does meets both alike. The ratio is that of the medians; on a busy machine that of the fastest steps says more.
One thread computes. Both sides must agree to the bit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[2] / "tools" / "lmsbuild" / "keras_models.py"
NAMES = ("convnet", "transformer", "lstm", "unet3d")
AMPLE = 1 << 40  # bytes: nothing ever has to leave
WARM_UP = 3  # steps: the first one traces the function, and then caches fill


def load_models() -> Any:
    """lmsbuild.keras_models, without installing the tool."""
    spec = importlib.util.spec_from_file_location("keras_models", MODELS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Side:
    """A process that trains one step each time it is asked to."""

    def __init__(self, python: str, name: str, managed: bool) -> None:
        words = [python, __file__, "--side", "lms" if managed else "stock", name]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        if self._answer() != "ready":
            raise SystemExit(f"{' '.join(words)} does not start: run it by hand")

    def step(self) -> tuple[float, str]:
        """Returns the step's seconds and its loss."""
        self._ask("step")
        seconds, loss = self._answer().split()
        return float(seconds), loss

    def stop(self) -> dict[str, int]:
        """Returns LMS's statistics."""
        self._ask("stop")
        answer: dict[str, int] = json.loads(self._answer())
        self.process.communicate()
        return answer

    def _ask(self, word: str) -> None:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def side(kind: str, name: str) -> None:
    """What a side's process does."""
    keras_models = load_models()
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras_models.deterministic()
    if kind == "lms":
        tf.lms.enable("cpu", limit=AMPLE)
    trainer = keras_models.make(name)
    print("ready", flush=True)
    while input() == "step":
        begin = time.perf_counter()
        loss = trainer.step()
        print(time.perf_counter() - begin, loss.hex(), flush=True)
    print(json.dumps(tf.lms.stats("cpu") if kind == "lms" else {}), flush=True)


def compare(stock_python: str, name: str, steps: int) -> dict[str, Any]:
    stock, managed = Side(stock_python, name, managed=False), Side(sys.executable, name, managed=True)
    seconds: dict[Side, list[float]] = {stock: [], managed: []}
    for step in range(WARM_UP + steps):
        losses = set()
        for one in (stock, managed) if step % 2 else (managed, stock):  # who goes first alternates too
            duration, loss = one.step()
            losses.add(loss)
            if step >= WARM_UP:
                seconds[one].append(duration)
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
    parser = argparse.ArgumentParser(description="Step time with LMS on and memory sufficient, against stock.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--steps", type=int, default=31, help="timed steps of each side (default %(default)s)")
    parser.add_argument("--stock", default=sys.executable, metavar="PYTHON", help="the interpreter of the other side")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--side", choices=("lms", "stock"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.models) - set(NAMES):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.side:
        side(options.side, options.models[0])
        return
    print(f"{options.steps} interleaved steps, one thread")
    print(f"{'model':<12} {'stock':>9} {'LMS':>9} {'ratio':>7} {'fastest':>8}   quartiles of the pairs' ratios")
    results = []
    for name in options.models or NAMES:
        result = compare(options.stock, name, options.steps)
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
