"""The program that `lmsbuild try` runs in the throw-away environment: trains a model and prints JSON lines.

Usage: training.py MODEL STEPS LIMIT... Trains once for each LIMIT, one after the other: "none" is without Large Model Support,
else it is a number of bytes, or "1/N" of the peak of the training before. Each is a fork of this process, which has imported
the framework, since that takes longer than some trainings. Prints, one object a line, the limit of a training as it begins, each
step's loss and end; then samples of the statistics over time; then the statistics and a digest of the trained tensors. What is
the framework's own is in backend.py, beside which this file is copied.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence

import backend
from models import make

_PERIOD = 0.005  # seconds between samples
_MIN_SIZE = 1 << 14  # bytes; smaller tensors stay with the stock allocator
_PR_SET_PDEATHSIG = 1


def main(model: str, steps: int, limits: Sequence[str]) -> None:
    backend.load()
    peak = 0
    for text in limits:
        limit = None if text == "none" else peak // int(text[2:]) if text.startswith("1/") else int(text)
        print(json.dumps({"limit": limit}), flush=True)
        peak = _in_a_fork(model, steps, limit)


def _in_a_fork(model: str, steps: int, limit: int | None) -> int:
    """Trains; returns the peak of the tensors, in bytes, and 0 without Large Model Support. Ends as a training does that fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not train on alone
        code = 1
        try:
            os.write(writing, str(train(model, steps, limit)).encode())
            code = 0
        finally:
            if code:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        peak = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    if status:
        sys.exit(os.WEXITSTATUS(status))
    return int(peak)


def train(model: str, steps: int, limit: int | None) -> int:
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
    return int(statistics.get("allocated_bytes.peak", 0))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
