"""The program that `lmsbuild try` runs in the throw-away environment: trains a model and prints JSON lines.

Usage: training.py MODEL STEPS [LIMIT]. With LIMIT (bytes) Large Model Support is on. Prints, one object a line, each
step's loss and end; then samples of the statistics over time; then the statistics and a digest of the trained tensors. What is
the framework's own is in backend.py, beside which this file is copied.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import backend
from models import make

_PERIOD = 0.005  # seconds between samples
_MIN_SIZE = 1 << 14  # bytes; smaller tensors stay with the stock allocator


def main(model: str, steps: int, limit: int | None) -> None:
    backend.prepare()
    if limit is not None:
        backend.enable(limit, _MIN_SIZE)
    trainer = make(model)
    start = time.monotonic()
    samples: list[tuple[float, int, int]] = []
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_PERIOD):
            now = backend.statistics()
            used = now["allocated_bytes.current"], now["resident_bytes.current"]
            samples.append((time.monotonic() - start, *used))

    watcher = threading.Thread(target=watch)
    if limit is not None:
        watcher.start()
    try:
        for step in range(1, steps + 1):
            loss = trainer.step().hex()
            print(json.dumps({"step": step, "loss": loss, "seconds": time.monotonic() - start}), flush=True)
    finally:
        finished.set()
        if limit is not None:
            watcher.join()
    seconds = time.monotonic() - start
    statistics = backend.statistics() if limit is not None else {}
    if limit is not None:
        backend.disable()
    digest = backend.digest(trainer)
    for sample in samples:
        print(json.dumps({"sample": sample}))
    print(json.dumps({"statistics": statistics, "digest": digest, "hashed": backend.HASHED, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
