"""What the two ManyModel programs have in common: their options, and the table at the end."""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import sys
from statistics import median

from lms_step_log import StepLog

MIB = 1 << 20
OUT_OF_MEMORY = 3  # exit code: some combination did not fit

COLUMNS = (
    *("model", "image", "batch", "peak resident MiB", "total MiB", "moved MiB/step", "s/step", "megapixels/s"),
    "last loss",
)


def size(text):
    """The bytes that a text like 512M, 1.5G or 1048576 means."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        result = int(float(number) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[unit])
    except (KeyError, ValueError, OverflowError):
        result = -1
    if result < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write bytes, or 512M, 8G and the like")
    return result


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def steps(text):
    """The first and the last of the steps that a text like 4:9 means."""
    first, colon, last = text.partition(":")
    if not colon or positive(first) > positive(last):
        raise argparse.ArgumentTypeError(f"{text!r} are no steps: write the first and the last, as 4:9")
    return int(first), int(last)


def parser(description, devices):
    """The options, without those that one program alone has. `devices`: what ``--device`` takes."""
    result = argparse.ArgumentParser(
        description=f"{description} Sizes: bytes, or 512M, 8G and the like. Exit code {OUT_OF_MEMORY}: something did not "
        "fit, which the table shows."
    )
    result.add_argument("models", nargs="+", metavar="MODEL")
    result.add_argument("--image-size", type=positive, default=224, metavar="N", help="pixels (default %(default)s)")
    result.add_argument(
        "--batch", type=positive, nargs="+", default=[8], metavar="N", help="one run for each (default 8)"
    )
    result.add_argument("--steps", type=positive, default=5, metavar="N", help="of each run (default %(default)s)")
    result.add_argument("--device", choices=devices, help=f"default: {devices[-1]} if there is one")
    result.add_argument(
        "--limit", type=size, metavar="SIZE", help="what tensors may occupy; a GPU's default: what is free"
    )
    result.add_argument("--policy", choices=("iteration", "lru"), default="iteration", help="default: %(default)s")
    result.add_argument("--store", metavar="FOLDER", help="for files with what is paged out; default: host memory")
    result.add_argument("--csv", metavar="FILE", help="write LMS's statistics of every step")
    result.add_argument("--no-lms", action="store_true", help="train without LMS, to compare")
    result.add_argument(
        "--warmup",
        type=positive,
        default=1,
        metavar="N",
        help="steps that do not count for what is a step's (default 1)",
    )
    result.add_argument("--averages", metavar="FILE", help="add a row with every run's averages to this CSV file")
    result.add_argument(
        "--profile", type=steps, metavar="FIRST:LAST", help="steps between which a CUDA profiler looks (nsys, nvprof)"
    )
    return result


def check(parser, options, lms, gpu):
    """Ends the program with a message where options contradict each other, or ask for what is not there.

    :param lms: the framework's LMS, or None.
    :param gpu: whether the framework finds a GPU.
    """
    if options.no_lms:
        if options.limit is not None or options.store or options.csv:
            parser.error("--no-lms goes with neither --limit nor --store nor --csv")
    elif lms is None:
        parser.error("this is the stock framework, without LMS: install a wheel that lmsbuild made, or use --no-lms")
    elif options.device == "cpu" and options.limit is None:
        parser.error("--device cpu needs --limit, or --no-lms")
    if options.device != "cpu" and not gpu:
        parser.error(f"--device {options.device}: the framework finds no GPU")
    if options.store and not os.path.isdir(options.store):
        parser.error(f"--store: {options.store} is not a folder that exists")
    for name, path in (("--csv", options.csv), ("--averages", options.averages)):
        written = path if not path or os.path.exists(path) else os.path.dirname(path) or "."
        if path and (os.path.isdir(path) or not os.access(written, os.W_OK)):
            parser.error(f"{name}: {path} cannot be written")
    if options.profile and options.device == "cpu":
        parser.error("--profile is about a GPU")


def enable(lms, device, options):
    lms.enable(device, limit=options.limit, policy=options.policy, store=options.store)


class _Log(StepLog):
    """Also tells a CUDA profiler that runs beside (nsys profile --capture-range=cudaProfilerApi) which steps to look at."""

    def __init__(self, lms, device, options, driver=None):
        self._first, self._last = options.profile or (0, 0)
        self._driver = driver or (ctypes.CDLL("libcuda.so.1") if options.profile else None)
        super().__init__(lms, device, options.csv)

    def start(self, **labels):
        super().start(**labels)
        self._profile()

    def __call__(self, *arguments):
        super().__call__(*arguments)
        self._profile()

    def _profile(self):
        done = len(self.rows)
        if self._driver is not None and done + 1 == self._first:
            self._driver.cuProfilerStart()
        if self._driver is not None and done == self._last:
            self._driver.cuProfilerStop()


def run(options, lms, device, train, out_of_memory):
    """Trains every model with every batch size, prints the table, and returns the program's exit code.

    :param lms: the framework's LMS, or None.
    :param train: a function of (model, batch, log) that calls ``log()`` after every step and returns the last loss.
    :param out_of_memory: the exception, or a tuple of them, that the framework raises then.
    """
    log = _Log(lms, device, options)
    table, code = [], 0
    for name in options.models:
        for batch in options.batch:
            log.start(model=name, image=options.image_size, batch=batch)
            try:
                loss = f"{train(name, batch, log):.9g}"
            except out_of_memory as error:
                print(f"{name}, batch {batch}: {error}", file=sys.stderr)
                loss, code = "out of memory", OUT_OF_MEMORY
            table.append((name, str(options.image_size), str(batch), *_measured(log, batch, options, lms), loss))
            if options.averages and log.rows:
                _add_averages(log, name, batch, options)
            print(f"{name}, batch {batch}: {len(log.rows)} steps", file=sys.stderr)
    log.close()
    for row in (COLUMNS, ["---"] + ["---:"] * (len(COLUMNS) - 1), *table):
        print(f"| {' | '.join(row)} |")
    return code


def _megapixels(batch, options, seconds):
    return batch * options.image_size**2 / 1e6 / seconds


def _measured(log, batch, options, lms):
    """What the table says of a run's steps. In the first ones everything is made: they count for the peaks alone."""
    if not log.rows:
        return "-", "-", "-", "-", "-"
    later = log.rows[options.warmup :] or log.rows
    seconds = median(row["seconds"] for row in later)
    speed = f"{seconds:.3f}", f"{_megapixels(batch, options, seconds):.3f}"
    if lms is None:
        return "-", "-", "-", *speed
    resident, total = (max(row[f"{name}_bytes.peak"] for row in log.rows) / MIB for name in ("resident", "allocated"))
    moved = sum(row["out.bytes"] + row["in.bytes"] for row in later) / len(later) / MIB
    return f"{resident:.1f}", f"{total:.1f}", f"{moved:.1f}", *speed


def _add_averages(log, name, batch, options):
    averages = log.averages(options.warmup)
    later = log.rows[options.warmup :] or log.rows
    row = {
        "model": name,
        "image": options.image_size,
        "batch": batch,
        "steps": len(later),
        "megapixels/s": _megapixels(batch, options, averages["seconds"]),
        "median megapixels/s": _megapixels(batch, options, median(row["seconds"] for row in later)),
        **averages,
    }
    with open(options.averages, "a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        known = next(csv.reader(file), None)
        if known not in (None, list(row)):
            sys.exit(f"--averages: {options.averages} has other columns, as with and without LMS: give another file")
        writer = csv.DictWriter(file, list(row))
        if known is None:
            writer.writeheader()
        writer.writerow(row)
