"""Training in less RAM than it needs: with LMS and a store on disk, against the kernel's swap on the same disk.

``sudo python tests/bench/swap.py [--ratio R] [--scale X] [--steps N] [--store FOLDER] [MODEL...]`` with an interpreter that
has the patched wheel. It needs root, swap (``swapon``), and a memory cgroup of version 1 or 2 in which it may make folders.

For each model three processes take turns of one step: stock PyTorch with all the RAM it wants; stock PyTorch in a cgroup,
whose excess the kernel swaps out; and LMS in a cgroup of the same size. That size is the most that the model's tensors need,
divided by R, and 128 MiB for everything that is no managed tensor; the limit of LMS is the first part alone. So what else
the machine does meets all three alike, and the ratios say more than the seconds. Single-threaded. Losses must agree to the
bit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tool_models
import torch
from interleaved import AMPLE, Forked

MIB = 1 << 20
ELSE = 128 * MIB  # bytes in the cgroup for what LMS does not manage
WARM_UP = 3  # steps: the policy has learned the iteration by then


@contextmanager
def cgroup(name: str, nbytes: int) -> Iterator[Path]:
    """A memory cgroup with room for `nbytes` bytes of RAM. Swap is not limited."""
    root = Path("/sys/fs/cgroup")
    first = (root / "memory").is_dir()  # version 1
    folder = root / "memory" / name if first else root / name
    if not first:
        (root / "cgroup.subtree_control").write_text("+memory")
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(nbytes))
        yield folder
    finally:
        folder.rmdir()


def train(connection: Connection, model: str, scale: float, group: Path | None, limit: int, store: Path | None) -> None:
    """What a process does: a step for each request. LMS is on if `limit` (bytes) is not 0."""
    if group:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    if limit:
        torch.lms.enable("cpu", limit=limit, store=store)
    trainer = tool_models.load("models").make(model, scale=scale)
    while connection.recv() == "step":
        begin = time.perf_counter()
        loss = trainer.step()
        connection.send((time.perf_counter() - begin, loss))
    read = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    connection.send({"major_faults": read, **(torch.lms.stats("cpu") if limit else {})})


def needed(model: str, scale: float) -> int:
    """The most bytes that the model's managed tensors need at a time."""
    side = Forked(train, model, scale, None, AMPLE, None)
    side.step()
    side.step()
    return side.stop()["allocated_bytes.peak"]


def compare(model: str, options: argparse.Namespace) -> dict[str, Any]:
    need = needed(model, options.scale)
    limit = int(need / options.ratio)
    with cgroup("lms-bench-swap", limit + ELSE) as swapped, cgroup("lms-bench-lms", limit + ELSE) as managed:
        sides = {
            "stock": Forked(train, model, options.scale, None, 0, None),
            "swap": Forked(train, model, options.scale, swapped, 0, None),
            "lms": Forked(train, model, options.scale, managed, limit, options.store),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        try:
            for step in range(WARM_UP + options.steps):
                losses = set()
                for name, side in sides.items():
                    duration, loss = side.step()
                    losses.add(loss)
                    if step >= WARM_UP:
                        seconds[name].append(duration)
                if len(losses) != 1:
                    raise SystemExit(f"{model}: losses differ at step {step}: {losses}")
            said = {name: side.stop() for name, side in sides.items()}
        finally:
            for side in sides.values():
                side.end()  # a cgroup goes when its last process has ended
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "model": model,
        "need_bytes": need,
        "limit_bytes": limit,
        "seconds": medians,
        "swap_to_stock": medians["swap"] / medians["stock"],
        "lms_to_stock": medians["lms"] / medians["stock"],
        "swap_to_lms": statistics.median(a / b for a, b in zip(seconds["swap"], seconds["lms"], strict=True)),
        "said": said,
    }


def main() -> None:
    models = tool_models.load("models")
    parser = argparse.ArgumentParser(description="Training in less RAM than it needs: LMS against the kernel's swap.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="transformer and convnet by default")
    parser.add_argument(
        "--ratio", type=float, default=2, help="what tensors need ÷ what they get (default %(default)s)"
    )
    parser.add_argument("--scale", type=float, default=3, help="of the models' width (default %(default)s)")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of each side (default %(default)s)")
    parser.add_argument("--store", type=Path, default=Path.cwd(), help="on the disk that has the swap (default: here)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if unknown := set(options.models) - set(models.MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if len(Path("/proc/swaps").read_text().splitlines()) < 2:
        raise SystemExit("this machine has no swap: make a file with mkswap, and switch it on with swapon")
    torch.set_num_threads(1)
    print(f"{'model':<12} {'need MiB':>9} {'limit':>7} {'stock':>8} {'swap':>8} {'LMS':>8} {'swap ÷ LMS':>11}")
    results = []
    for model in options.models or ("transformer", "convnet"):
        result = compare(model, options)
        results.append(result)
        times = " ".join(f"{result['seconds'][name]:6.2f} s" for name in ("stock", "swap", "lms"))
        sizes = f"{result['need_bytes'] / MIB:9.0f} {result['limit_bytes'] / MIB:7.0f}"
        print(f"{model:<12} {sizes} {times} {result['swap_to_lms']:11.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
