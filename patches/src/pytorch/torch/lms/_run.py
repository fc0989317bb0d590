"""Runs a Python program with LMS, without a change of it: as python would, with TORCH_LMS in its environment."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import torch

from . import _environment

if TYPE_CHECKING:
    import argparse

SUMMARY = "run a program with LMS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [options] PROGRAM.py [ARGUMENT...]\n"
        "       %(prog)s [options] -m MODULE [ARGUMENT...]\n"
        "       %(prog)s [options] -c CODE [ARGUMENT...]\n"
        "       %(prog)s [options] - [ARGUMENT...]"
    )
    add = parser.add_argument
    add(
        "--limit",
        metavar="SIZE",
        help="what tensors may occupy: 8GiB, 0.5 or 50%% of the memory, auto (default): what there is",
    )
    add(
        "--store",
        metavar="FOLDER",
        action="append",
        help="puts what is paged out into files there, and given again on another disk, too; without, it stays in host "
        "memory, or with limit auto on the CPU goes to a temporary folder on a disk",
    )
    add(
        "--no-checksum",
        "--no_checksum",
        action="store_true",
        help="does not check that what comes back from files is what was written there",
    )
    add("--device", help="cpu, cuda (every device that the program uses) or cuda:N; default: cuda where there is one")
    add("--min-size", "--min_size", metavar="SIZE", help="from which on a tensor is managed")
    add("--policy", metavar="NAME", help="what is paged out first")
    add("--strict", action="store_true", help="what needs more than the limit is an error")
    add(
        "--per-node",
        "--per_node",
        action="store_true",
        help="the limit is the node's: each of its processes gets its share",
    )
    add("--share", action="store_true", help="the limit is a budget of all processes that do the same, as they need it")
    add("--share-name", "--share_name", metavar="NAME", help="the same, of those that give this name")
    add("--weight", metavar="NUMBER", help="who shares with twice the weight gets twice as much; 1")
    add("--minimum", metavar="SIZE", help="what others who share do not get, though they need it; 0")
    add("--priority", metavar="NUMBER", help="who shares with a higher one is served first; 0")
    add("--group", metavar="NAME", help="lets other users of that group share")
    add("-m", dest="flags", action="store_const", const=["-m"], default=[], help="run a module")
    add("-c", dest="flags", action="store_const", const=["-c"], help="run this code; '-' runs what standard input has")
    add("program", metavar="PROGRAM.py")
    add("arguments", nargs="...", metavar="ARGUMENT")


def main(options: argparse.Namespace) -> NoReturn:
    request = _requested(options)
    if not options.flags and options.program != "-" and not os.path.exists(options.program):
        options.parser.error(f"{options.program!r} does not exist; options of this command go before the program")
    words = [*options.flags, options.program, *options.arguments]
    _free_of_places()
    sys.stdout.flush()
    sys.stderr.flush()
    # The program gets a process that has not imported torch yet, so that what it sets for torch before that has effect.
    os.execve(sys.executable, [sys.executable, *_flags(), *words], {**os.environ, _environment.VARIABLE: request})


def _requested(options: argparse.Namespace) -> str:
    """The program's TORCH_LMS."""
    values = {
        "limit": options.limit,
        "min_size": options.min_size,
        "store": None if options.store is None else os.pathsep.join(map(_absolute, options.store)),
        "policy": options.policy,
        "share": options.share_name,
        "weight": options.weight,
        "minimum": options.minimum,
        "priority": options.priority,
        "group": options.group,
    }
    given = {name: value for name, value in values.items() if value is not None}
    if options.share_name == "":
        options.parser.error("--share-name: an empty name; --share is the device's own budget")
    given.update(
        (name, "")
        for name in ("strict", "per_node", "share", "no_checksum")
        if getattr(options, name) and name not in given
    )
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cpu") and not {"limit", "per_node", "share"}.intersection(given):
        given["limit"] = "auto"
    request = _environment.Request(device, given)
    try:
        _environment.check(request)
    except (TypeError, ValueError, RuntimeError) as error:
        options.parser.error(str(error))
    return _environment.write([request])


def _absolute(folder: str) -> str:
    return os.path.abspath(folder) if os.path.isdir(folder) else folder


def _flags() -> list[str]:
    """The running interpreter's own options."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing has it
    return flags + (["-u"] if getattr(sys.stdout, "write_through", False) else [])


def _free_of_places() -> None:
    """Lets the process use every processor again: where OMP_PROC_BIND is set OpenMP, which came with torch, has bound
    this thread to the first of its places, and the program would inherit that.
    """
    openmp = ctypes.CDLL(torch._C.__file__)  # and all that it needs; a build need not make OpenMP's names global
    if not hasattr(openmp, "omp_get_place_proc_ids"):
        return
    processors: set[int] = set()
    for place in range(openmp.omp_get_num_places()):
        ids = (ctypes.c_int * openmp.omp_get_place_num_procs(place))()
        openmp.omp_get_place_proc_ids(place, ids)
        processors.update(ids)
    if processors:
        os.sched_setaffinity(0, processors)
