"""Several processes that share a budget of RAM, against equal fixed limits of the same sum.

``python tests/bench/share.py [--seconds S] [--rounds N] [--store FOLDER] [--json FILE]`` with an interpreter that has the patched wheel.

The processes all train the transformer of ``lmsbuild try``, which needs 117 MiB, and have 120 MiB together. Where needs are uneven one of
four works; the others have trained, and hold what they have. Where they are even, two or four work at once. Three groups of processes
exist all the while: with fixed limits, with a shared one, and one process that has the whole budget for itself. They take turns of S seconds,
so that whatever else the machine does meets all alike; the numbers are medians of the turns. Losses must agree to the bit.

The last line is about 1 GiB that an idle process holds and another asks for: how long that takes, against the time in which the first
pages as much out by itself. Single-threaded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tool_models
import torch

MIB = 1 << 20
BUDGET = 120 * MIB
MODEL = "transformer"
WARM_UP = 4  # steps: the policy has learned the iteration by then
GIB_TENSORS, GIB_BYTES = 64, 16 * MIB  # which are 1 GiB


def train(connection: Connection, options: dict[str, Any]) -> None:
    """Answers a number of seconds with the losses of the steps that it then took, and their seconds."""
    torch.set_num_threads(1)
    torch.lms.enable("cpu", **options)
    trainer = tool_models.load("models").make(MODEL)
    losses = [trainer.step() for _ in range(WARM_UP)]
    connection.send(losses)
    while (seconds := connection.recv()) is not None:
        begin, losses = time.perf_counter(), []
        while time.perf_counter() - begin < seconds:
            losses.append(trainer.step())
        connection.send((losses, time.perf_counter() - begin))
    connection.send(torch.lms.stats("cpu"))


class Group:
    """Processes with their own ways to have memory. Each has `losses`, all that it has said."""

    def __init__(self, count: int, **options: Any) -> None:
        context = multiprocessing.get_context("fork")
        self.losses: list[list[float]] = [[] for _ in range(count)]
        self._connections, self._processes = [], []
        for _ in range(count):
            connection, other = multiprocessing.Pipe()
            self._connections.append(connection)
            self._processes.append(context.Process(target=train, args=(other, options), daemon=True))
            self._processes[-1].start()
            other.close()
        for index in range(count):
            self.losses[index] += self._connections[index].recv()

    def work(self, workers: int, seconds: float) -> float:
        """Steps per second, of all together, when the first of them work."""
        for connection in self._connections[:workers]:
            connection.send(seconds)
        speed = 0.0
        for index, connection in enumerate(self._connections[:workers]):
            losses, taken = connection.recv()
            speed += len(losses) / taken
            self.losses[index] += losses
        return speed

    def stop(self) -> list[dict[str, int]]:
        for connection in self._connections:
            connection.send(None)
        statistics = [connection.recv() for connection in self._connections]
        for process in self._processes:
            process.join()
        return statistics


def compare(name: str, count: int, workers: int, options: argparse.Namespace, store: str) -> dict[str, Any]:
    groups = {
        "fixed": Group(count, limit=BUDGET // count, store=store),
        "shared": Group(count, limit=BUDGET, store=store, share=f"bench-{os.getpid()}"),
    }
    if workers == 1:
        groups["alone"] = Group(1, limit=BUDGET, store=store)
    speeds: dict[str, list[float]] = {group: [] for group in groups}
    for turn in range(options.rounds + 1):
        for name_of_group, group in groups.items():
            speed = group.work(workers, options.seconds)
            if turn:  # in the first the shared ones come to their shares
                speeds[name_of_group].append(speed)
    said = {group: each.stop() for group, each in groups.items()}
    for losses in zip(*itertools.chain(*(groups[group].losses for group in groups)), strict=False):
        if len(set(losses)) != 1:
            raise SystemExit(f"{name}: losses differ: {losses}")
    medians = {group: statistics.median(values) for group, values in speeds.items()}
    passed = max(values["over_limit_bytes.peak"] for values in said["shared"])
    result = {"name": name, **medians, "over_limit_bytes": passed}
    ratios = [
        f"{medians['shared'] / medians[other]:.2f} of {other}" for other in ("fixed", "alone") if other in medians
    ]
    print(
        f"{name:<24} {medians['fixed']:6.2f} {medians['shared']:6.2f} {medians.get('alone', 0):6.2f}   {', '.join(ratios)}",
        flush=True,
    )
    return result


def hold(connection: Connection, store: str, name: str) -> None:
    """Holds 1 GiB. Answers "out" with the seconds in which it is paged out, and "take" with those in which as much is had."""
    torch.set_num_threads(1)
    torch.lms.enable("cpu", limit="1GiB", store=store, share=name)
    held: list[torch.Tensor] = []
    while (word := connection.recv()) != "stop":
        begin = time.perf_counter()
        if word == "take":
            held = [torch.empty(GIB_BYTES // 4) for _ in range(GIB_TENSORS)]
            seconds = time.perf_counter() - begin
            for tensor in held:
                tensor.fill_(1.0)
        elif word == "out":
            torch.lms.reclaim("cpu")
            seconds = time.perf_counter() - begin
        else:  # "in"
            for tensor in held:
                tensor.add_(1.0)
            seconds = time.perf_counter() - begin
        connection.send(seconds)
    os._exit(0)


def hand_over(options: argparse.Namespace, store: str) -> dict[str, Any]:
    """Two processes that take 1 GiB from one another in turn."""
    context, ends = multiprocessing.get_context("fork"), []
    for _ in range(2):
        connection, other = multiprocessing.Pipe()
        context.Process(target=hold, args=(other, store, f"bench-{os.getpid()}-gib"), daemon=True).start()
        ends.append(connection)

    def say(who: Connection, word: str) -> float:
        who.send(word)
        seconds: float = who.recv()
        return seconds

    taken, copied = [], []
    say(ends[0], "take")
    for turn in range(options.rounds + 1):
        first, second = ends[turn % 2], ends[1 - turn % 2]
        say(first, "in")
        alone = say(first, "out")  # the time of the copy
        say(first, "in")
        time.sleep(1)  # it is idle now
        waited = say(second, "take")
        if turn:
            copied.append(alone)
            taken.append(waited)
    for connection in ends:
        connection.send("stop")
    result = {
        "name": "1 GiB handed over",
        "copy_seconds": statistics.median(copied),
        "seconds": statistics.median(taken),
    }
    ratio = statistics.median(wait / copy for wait, copy in zip(taken, copied, strict=True))
    print(
        f"{result['name']:<24} {result['copy_seconds']:.3f} s to copy, {result['seconds']:.3f} s to have: {ratio:.2f}"
    )
    return {**result, "ratio": ratio}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A shared budget against fixed limits.")
    parser.add_argument("--seconds", type=float, default=4, help="of a turn (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each group (default %(default)s)")
    parser.add_argument("--store", type=Path, help="folder for what is paged out (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, steps per second together, {BUDGET // MIB} MiB")
    print(f"{'':<24} {'fixed':>6} {'shared':>6} {'alone':>6}")
    with tempfile.TemporaryDirectory(dir=options.store) as store:
        results = [
            compare("one of four works", 4, 1, options, store),
            compare("two of two work", 2, 2, options, store),
            compare("four of four work", 4, 4, options, store),
            hand_over(options, store),
        ]
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
