"""The program that `lmsbuild try` runs in the throw-away environment: trains a model and prints JSON lines.

Usage: training.py MODEL STEPS [LIMIT]. With LIMIT (bytes) Large Model Support is on. Prints, one object a line, each
step's loss; then samples of the statistics over time; then the statistics and a digest of the trained tensors.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import threading
import time
from pathlib import Path

import torch
from models import make

_PERIOD = 0.005  # seconds between samples
_MIN_SIZE = 1 << 14  # bytes; smaller tensors stay with the stock allocator


def main(model: str, steps: int, limit: int | None) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if hasattr(torch, "use_deterministic_algorithms"):  # from 1.8 on; what is trained is deterministic anyway
        torch.use_deterministic_algorithms(True)
    if limit is not None:
        for library in sorted(Path(torch.__file__).parent.glob("lib/libtorch_lms*.so")):
            ctypes.CDLL(str(library))  # also the one for CUDA, so that a symbol which it misses is found here
        torch.lms.enable("cpu", limit=limit, min_size=_MIN_SIZE)
    trainer = make(model)
    start = time.monotonic()
    samples: list[tuple[float, int, int]] = []
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_PERIOD):
            now = torch.lms.stats("cpu")
            used = now["allocated_bytes.current"], now["resident_bytes.current"]
            samples.append((time.monotonic() - start, *used))

    watcher = threading.Thread(target=watch)
    if limit is not None:
        watcher.start()
    try:
        for step in range(1, steps + 1):
            print(json.dumps({"step": step, "loss": trainer.step().hex()}), flush=True)
    finally:
        finished.set()
        if limit is not None:
            watcher.join()
    seconds = time.monotonic() - start
    statistics = torch.lms.stats("cpu") if limit is not None else {}
    if limit is not None:
        torch.lms.disable("cpu")
    digest = hashlib.sha256()
    for tensor in trainer.tensors():
        whole = tensor.detach().contiguous()
        digest.update(ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()))
    for sample in samples:
        print(json.dumps({"sample": sample}))
    print(json.dumps({"statistics": statistics, "digest": digest.hexdigest(), "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
