"""Training in less RAM than it needs: LMS with a store on disk, against the kernel's swap on the same disk, and on zram.

``sudo python tests/bench/ram.py [MODEL...] [--ram F...] [--steps N] [--scale X] [--store FOLDER]`` with an interpreter that has
the patched wheel; with ``--tensorflow``, that of TensorFlow 2.11 or later. Root is needed for cgroups and for swap: a memory cgroup of
version 1, or of version 2 with Linux 5.19, and no swap that is on already. The swap file is made in FOLDER, and a zram device where
the kernel has zram; all of it goes at the end. Without root, or with ``--no-swap``, no process is limited, and LMS is compared with
enough RAM and with the disk. So it is with ``--disk-speed MIB``, where LMS and the plain reader and writer have a disk of so many
MiB a second, each way (root).

For each model and each part F of the RAM, these take turns of one step, so that whatever else the machine does meets all alike:

* stock: the framework without LMS, with all the RAM that it wants;
* enough: LMS with a limit above all needs;
* swap: the framework without LMS in a cgroup, whose excess the kernel swaps out;
* lms: LMS in a cgroup of that size, with its store in FOLDER;
* disk: reads and writes as many bytes as LMS has just moved, both at once, with O_DIRECT, in eight requests of 1 MiB at a time.

LMS's limit is F times the most bytes that the model's managed tensors need. Both cgroups have that, the process's own memory, and
64 MiB. A process's own memory is the peak of its cgroup with enough RAM, less what LMS manages in it. Then all take turns again
with zram in place of the swap file. What zram keeps is in RAM as well, but in no cgroup. "killed": the kernel ended that
process although there was room to swap to.

The bound is the longer of stock's seconds and the disk's. All ratios are medians of those within a turn. A process whose turn is over
is stopped (SIGSTOP): threads of LMS would go on copying in the time of others. Single-threaded. Losses must agree to the bit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import mmap
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import disk
import kernel
import tool_models
from interleaved import AMPLE, Forked

MIB = 1 << 20
SPARE = 64 * MIB  # bytes in a cgroup beside the limit and the process's own memory
# Steps until the policy has learned the iteration. TensorFlow changes the order of its operations while it finds out
# which of them take long.
WARM_UP = {"torch": 3, "tensorflow": 8}
SAMPLED = 0.01  # seconds between two looks at a process's resident memory
KILLED = "killed"  # instead of a ratio
PREFIX = "lms-bench-ram"  # of the names of cgroups, and of the folder in FOLDER
MODELS = {"torch": ("mlp", "gpt", "unet", "lstm"), "tensorflow": tool_models.KERAS}
SCALES = {"torch": 1.0, "tensorflow": 3.0}  # by default, of the models' width
SWAPS = {"swap": kernel.swap_file, "zram": kernel.zram}
COLUMNS = (
    *("model", "RAM", "tensors, MiB", "limit, MiB", "stock, s", "LMS, s", "LMS in + out, MiB", "swap in + out, MiB"),
    *("enough ÷ stock", "LMS ÷ stock", "LMS ÷ bound", "swap ÷ LMS", "zram ÷ LMS"),
    *("allowed, MiB", "LMS's peak, MiB", "swap's peak, MiB", "in zram, MiB of RAM"),
)


class Killed(Exception):
    """The kernel found no memory for a process in its cgroup."""


class Turn(NamedTuple):
    """One step of one side."""

    seconds: float
    loss: float
    read: int  # bytes: by LMS from its store; of the sides without LMS, by the kernel from swap
    written: int
    resident: list[tuple[float, int]]  # seconds since the turn began, and bytes of RAM that the process has (VmRSS)


def enter(group: Path | None) -> None:
    """This process is in that cgroup from now on."""
    if group:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def copy(connection: Connection, file: Path, group: Path | None) -> None:
    enter(group)
    disk.copy(connection, file)


def load(framework: str) -> tuple[Any, Callable[..., Any]]:
    """The framework's `lms`, and what makes a model of that name and scale, which has `step`. One thread computes."""
    if framework == "torch":
        import ram_models
        import torch

        torch.set_num_threads(1)
        return torch.lms, ram_models.make
    keras_models = tool_models.load("keras_models")
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras_models.deterministic()

    def make(model: str, scale: float) -> Any:
        trainer = keras_models.make(model, scale=scale)
        # Else TensorFlow folds the optimizer's first values into constants, outside of LMS: docs/tensorflow.md.
        trainer.model.optimizer.build(trainer.model.trainable_variables)
        return trainer

    return tf.lms, make


def train(
    connection: Connection, options: argparse.Namespace, model: str, group: Path | None, asked: dict[str, Any] | None
) -> None:
    """What a process does: a step for each request. `asked` is what `lms.enable` gets; None: LMS stays off."""
    enter(group)
    lms, make = load(options.framework)
    if asked is not None:
        lms.enable("cpu", **asked)
    trainer = make(model, scale=options.scale)
    while connection.recv() == "step":
        begin = time.perf_counter()
        loss = trainer.step()
        connection.send((time.perf_counter() - begin, loss, {} if asked is None else lms.stats("cpu")))


def ask(side: Forked, question: Any) -> tuple[Any, list[tuple[float, int]]]:
    """Lets a process run until it has answered. Returns the answer, and its resident bytes at each moment (s)."""
    pid, resident = side.process.pid, []
    assert pid is not None
    os.kill(pid, signal.SIGCONT)
    side.connection.send(question)
    begin = time.perf_counter()
    while not side.connection.poll(SAMPLED):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        resident.append((time.perf_counter() - begin, pages * mmap.PAGESIZE))
    try:
        answer = side.connection.recv()
    except EOFError:
        side.process.join()
        code = side.process.exitcode
        if code == -signal.SIGKILL:
            raise Killed from None
        raise SystemExit(f"a process ended, code {code}") from None
    os.kill(pid, signal.SIGSTOP)
    return answer, resident


def needs(options: argparse.Namespace, model: str, limited: bool) -> tuple[int, int]:
    """The most bytes that the model's managed tensors need at a time, and those that its process has besides: 0 where
    there are no cgroups.
    """
    with ExitStack() as stack:
        group = stack.enter_context(kernel.cgroup(f"{PREFIX}-own", None)) if limited else None
        side = Forked(train, options, model, group, {"limit": AMPLE})
        stack.callback(side.end)
        for _ in range(WARM_UP[options.framework]):
            said = ask(side, "step")[0][2]
        return said["allocated_bytes.peak"], kernel.peak(group) - said["device_bytes.peak"] if group else 0


def take_turns(
    sides: dict[str, Forked], plain: Forked, warm_up: int, steps: int
) -> tuple[list[dict[str, Turn]], dict[str, int]]:
    """The timed turns of all sides and of the plain reader and writer, "disk"; LMS's statistics at the end."""
    turns: list[dict[str, Turn]] = []
    stats: dict[str, int] = {}
    gone: list[str] = []  # killed, although there was room to swap to
    for step in range(warm_up + steps):
        turn: dict[str, Turn] = {}
        for name, side in sides.items():
            if name in gone:
                continue
            before = kernel.swapped()
            try:
                (seconds, loss, said), resident = ask(side, "step")
            except Killed:
                if name not in SWAPS:
                    raise SystemExit(f"{name} was killed: its cgroup is too small") from None
                gone.append(name)
                continue
            after = kernel.swapped()
            if name == "lms":
                before = stats.get("in.bytes", 0), stats.get("out.bytes", 0)
                after = said["in.bytes"], said["out.bytes"]
                stats = said
            elif said and said["out.bytes"]:
                raise SystemExit(f"{said['out.bytes']} bytes left although memory was sufficient")
            turn[name] = Turn(seconds, loss, after[0] - before[0], after[1] - before[1], resident)
        if len({one.loss for one in turn.values()}) != 1:
            raise SystemExit(f"losses differ at step {step}: {[(name, one.loss) for name, one in turn.items()]}")
        sizes = turn["lms"].read, turn["lms"].written
        turn["disk"] = Turn(ask(plain, sizes)[0], turn["lms"].loss, *sizes, [])
        if step >= warm_up:
            turns.append(turn)
    for turn in turns:
        for name in gone:
            turn.pop(name, None)
    return turns, stats


def measure(model: str, need: int, limit: int, allowed: int, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Turns while the kernel swaps to that kind of device. "": without swap and cgroups. Sizes are bytes."""
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-", dir=options.store) as folder, ExitStack() as stack:
        file = Path(folder) / "disk"
        kernel.write_file(file, need, os.urandom(MIB))
        groups: dict[str, Path] = {}
        if kind:
            zram_bytes = stack.enter_context(SWAPS[kind](Path(folder), 2 * need))
            groups = {name: stack.enter_context(kernel.cgroup(f"{PREFIX}-{name}", allowed)) for name in (kind, "lms")}
        slow = None
        if options.disk_speed:
            speed = int(options.disk_speed * MIB)
            slow = stack.enter_context(kernel.slow_disk(f"{PREFIX}-slow", options.store, speed))
        asked: dict[str, dict[str, Any] | None] = {"stock": None, "enough": {"limit": AMPLE, "store": folder}}
        if kind:
            asked[kind] = None
        asked["lms"] = {"limit": limit, "store": folder}
        sides = {}
        for name, lms in asked.items():
            group = slow if slow and name == "lms" else groups.get(name)
            sides[name] = Forked(train, options, model, group, lms)
            stack.callback(sides[name].end)  # before its cgroup goes, and the swap
        plain = Forked(copy, file, slow)
        stack.callback(plain.end)
        turns, stats = take_turns(sides, plain, WARM_UP[options.framework], options.steps)
        return {
            "turns": turns,
            "statistics": stats,
            "peak_bytes": {name: kernel.peak(group) for name, group in groups.items()},
            "zram_bytes": zram_bytes() if kind else 0,
        }


def median(turns: list[dict[str, Turn]], name: str, field: str = "seconds") -> float:
    value: float = statistics.median(getattr(turn[name], field) for turn in turns)
    return value


def moved(turns: list[dict[str, Turn]], name: str) -> tuple[float, float]:
    """Bytes in and out of a step of that side."""
    return median(turns, name, "read"), median(turns, name, "written")


def ratio(turns: list[dict[str, Turn]], one: str, *others: str) -> float:
    """The median of a side's seconds divided by those of the slowest of the others in the same turn."""
    return statistics.median(turn[one].seconds / max(turn[other].seconds for other in others) for turn in turns)


def summary(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the table says of one model in one part of the RAM, by the kind of swap."""
    first = next(iter(measured.values()))
    turns = first["turns"]
    result: dict[str, Any] = {
        "seconds": {name: median(turns, name) for name in turns[0]},
        "moved_bytes": {"lms": moved(turns, "lms")},
        "enough_to_stock": ratio(turns, "enough", "stock"),
        "lms_to_stock": ratio(turns, "lms", "stock"),
        "lms_to_bound": ratio(turns, "lms", "stock", "disk"),
        "peak_bytes": first["peak_bytes"],
        "statistics": first["statistics"],
    }
    for kind, each in measured.items():
        if kind and kind not in each["turns"][0]:
            result[f"{kind}_to_lms"] = KILLED
        elif kind:
            result[f"{kind}_to_lms"] = ratio(each["turns"], kind, "lms")
            result["seconds"][kind] = median(each["turns"], kind)
            result["moved_bytes"][kind] = moved(each["turns"], kind)
            result["zram_bytes"] = each["zram_bytes"]
    return result


def row(result: dict[str, Any]) -> str:
    """A row of the table; what was not measured is a dash."""

    def mib(*sizes: float | None) -> str:
        return " + ".join("–" if size is None else f"{size / MIB:.0f}" for size in sizes)

    seconds, bytes_moved, peaks = result["seconds"], result["moved_bytes"], result["peak_bytes"]
    ratios = ("enough_to_stock", "lms_to_stock", "lms_to_bound", "swap_to_lms", "zram_to_lms")
    cells = [
        result["model"],
        f"{result['ram']:.0%}",
        mib(result["need_bytes"]),
        mib(result["limit_bytes"]),
        f"{seconds['stock']:.2f}",
        f"{seconds['lms']:.2f}",
        mib(*bytes_moved["lms"]),
        mib(*bytes_moved.get("swap", [None])),
        *(f"{result[key]:.2f}" if result.get(key, KILLED) != KILLED else result.get(key, "–") for key in ratios),
        mib(result["allowed_bytes"] if peaks else None),
        mib(peaks.get("lms")),
        mib(peaks.get("swap")),
        mib(result.get("zram_bytes") or None),
    ]
    return f"| {' | '.join(cells)} |"


def draw(picture: Path, model: str, need: int, limit: int, turns: list[dict[str, Turn]]) -> None:
    """Resident memory over time, without LMS and with enough RAM, and with LMS. Sizes are bytes."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
    from lmsbuild.trial import timeline

    def run(name: str) -> timeline.Run:
        begin, ends, samples = 0.0, [], []
        for turn in turns:
            samples += [timeline.Sample(begin + when, size, size) for when, size in turn[name].resident]
            begin += turn[name].seconds
            ends.append(begin)
        return timeline.Run(ends, samples)

    title = f"Training the {model}: {need / MIB:.0f} MiB of tensors with a limit of {limit / MIB:.0f} MiB"
    timeline.draw(picture, run("stock"), run("lms"), limit, title, "MiB of RAM, whole process", "limit of tensors")


def compare(model: str, options: argparse.Namespace, kinds: list[str]) -> list[dict[str, Any]]:
    """Prints the model's rows, and returns all that they say and more."""
    need, own = needs(options, model, kinds != [""])
    results = []
    for ram in options.ram:
        limit = int(need * ram)
        allowed = limit + own + SPARE
        measured = {kind: measure(model, need, limit, allowed, kind, options) for kind in kinds}
        sizes = {"need_bytes": need, "limit_bytes": limit, "own_bytes": own, "allowed_bytes": allowed}
        result = {"model": model, "ram": ram, **sizes, **summary(measured)}
        print(row(result), flush=True)
        results.append(result)
        if options.picture and ram == min(options.ram) and model == options.models[0]:
            draw(options.picture, model, need, limit, measured[kinds[0]]["turns"])
    return results


def interrupted(number: int, frame: FrameType | None) -> None:
    """Ends the program, so that what it has made goes; another signal does not disturb that."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def check(options: argparse.Namespace) -> None:
    """Nothing may be there that a run makes: it would be of another run."""
    found = [str(path) for path in options.store.glob(f"{PREFIX}*")]
    found += kernel.left_over(PREFIX)
    if not options.no_swap:
        found += kernel.swaps()
    if found:
        raise SystemExit(
            f"remove these first (swap: swapoff; cgroups: rmdir), or wait for their run: {', '.join(found)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [MODEL...] [options]",
        description="Training in less RAM than it needs: LMS, swap, zram and the disk.",
    )
    names = "; with --tensorflow ".join(", ".join(each) for each in MODELS.values())
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {names}; all by default")
    parser.add_argument(
        "--tensorflow",
        dest="framework",
        action="store_const",
        const="tensorflow",
        default="torch",
        help="compare TensorFlow with itself, not PyTorch",
    )
    parser.add_argument(
        "--ram",
        type=float,
        nargs="+",
        default=[0.75, 0.5, 0.25],
        metavar="F",
        help="LMS's limit, as parts of what the tensors need (default 0.75 0.5 0.25)",
    )
    parser.add_argument("--steps", type=int, default=7, help="timed steps of each side (default %(default)s)")
    parser.add_argument("--scale", type=float, help="of the models' width (default: about a GiB of tensors)")
    parser.add_argument("--store", type=Path, default=Path.cwd(), help="folder on the disk to use (default: this one)")
    parser.add_argument("--disk-speed", type=float, metavar="MIB", help="of a slow disk, MiB a second; without swap")
    parser.add_argument("--no-zram", action="store_true", help="compare with the swap file alone")
    parser.add_argument("--no-swap", action="store_true", help="without swap and cgroups, as without root")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--picture", type=Path, help="also draw the first model's memory, as .svg and .png")
    options = parser.parse_args()
    if options.disk_speed is not None and (options.disk_speed < 1 or os.geteuid() != 0):
        parser.error("--disk-speed is 1 or more, and needs root")
    if not all(0 < part <= 1 for part in options.ram):
        parser.error("--ram takes parts of the whole, above 0 and up to 1")
    if options.steps < 1 or (options.scale is not None and options.scale <= 0):
        parser.error("--steps is 1 or more, and --scale more than 0")
    folders = [options.store, *(file.absolute().parent for file in (options.json, options.picture) if file)]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        parser.error(f"no such folder: {', '.join(missing)}")
    options.no_swap = options.no_swap or os.geteuid() != 0 or options.disk_speed is not None
    if unknown := set(options.models) - set(MODELS[options.framework]):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    options.models = options.models or list(MODELS[options.framework])
    options.scale = options.scale or SCALES[options.framework]
    check(options)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:  # as under nohup
            signal.signal(each, interrupted)
    kinds = (
        [""] if options.no_swap else ["swap"] + ["zram"] * (not options.no_zram and kernel.zram_works(options.store))
    )
    version = importlib.metadata.version(options.framework)
    print(
        f"{options.framework} {version}, {options.steps} timed steps of each side after {WARM_UP[options.framework]}, one thread"
    )
    print(f"| {' | '.join(COLUMNS)} |\n| --- |{' ---: |' * (len(COLUMNS) - 1)}", flush=True)
    results = [result for model in options.models for result in compare(model, options, kinds)]
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
