"""Keras training with LMS on and memory sufficient, against the stock allocator: what LMS costs when it is not needed.

``python tests/bench/keras_train.py [--steps N] [--stock PYTHON] [--json FILE] [MODEL...]`` with an interpreter that has
the patched TensorFlow. For each model two processes train side by side, one with LMS enabled and one that never enables
it (with ``--stock``, by an interpreter that has the official wheel); their steps alternate, so that whatever else the
machine does meets both alike. The ratio is that of the medians; on a busy machine that of the fastest steps says more.
One thread computes. Both sides must agree to the bit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import interleaved
import tool_models

WARM_UP = 3  # steps: the first one traces the function, and then caches fill


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
    keras_models = tool_models.load("keras_models")
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras_models.deterministic()
    if kind == "lms":
        tf.lms.enable("cpu", limit=interleaved.AMPLE)
    trainer = keras_models.make(name)
    print("ready", flush=True)
    while input() == "step":
        begin = time.perf_counter()
        loss = trainer.step()
        print(time.perf_counter() - begin, loss.hex(), flush=True)
    print(json.dumps(tf.lms.stats("cpu") if kind == "lms" else {}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time with LMS on and memory sufficient, against stock.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(tool_models.KERAS)}; all by default")
    parser.add_argument("--steps", type=int, default=31, help="timed steps of each side (default %(default)s)")
    parser.add_argument("--stock", default=sys.executable, metavar="PYTHON", help="the interpreter of the other side")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--side", choices=("lms", "stock"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.models) - set(tool_models.KERAS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.side:
        side(options.side, options.models[0])
        return
    print(f"{options.steps} interleaved steps, one thread")

    def compared(name: str) -> dict[str, Any]:
        sides = Side(options.stock, name, managed=False), Side(sys.executable, name, managed=True)
        return interleaved.compare(name, *sides, options.steps, WARM_UP)

    interleaved.report(options.models or tool_models.KERAS, compared, options.json)


if __name__ == "__main__":
    main()
