"""Plays traces to the pager's own policies, compiled at run time, and to schedules that know the future."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from lmsbuild.paths import pager_folder
from lmsreplay.trace import FREE, READ, WRITE, Trace

_FLAGS = ("-std=c++14", "-O2", "-shared", "-fPIC")


class CompileError(RuntimeError):
    """The compiler is missing or refused the sources; the message holds what it said."""


class _Input(ctypes.Structure):
    _fields_ = (
        ("events", ctypes.c_int64),
        ("kind", ctypes.c_void_p),
        ("thread", ctypes.c_void_p),
        ("block", ctypes.c_void_p),
        ("nbytes", ctypes.c_void_p),
        ("compute", ctypes.c_void_p),
        ("iteration", ctypes.c_void_p),
        ("next_use", ctypes.c_void_p),
        ("evict", ctypes.c_void_p),
        ("limit", ctypes.c_uint64),
        ("bandwidth", ctypes.c_double),
        ("ahead", ctypes.c_int32),
    )


class _Output(ctypes.Structure):
    _fields_ = (
        ("bytes_in", ctypes.c_void_p),
        ("bytes_out", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p),
        ("stall", ctypes.c_void_p),
        ("occupied", ctypes.c_void_p),
        ("most", ctypes.c_uint64),
        ("over", ctypes.c_uint64),
        ("foreseen", ctypes.c_uint64),
        ("departures", ctypes.c_uint64),
        ("wrong", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Result:
    """What one replay moved. Arrays are by iteration, except ``occupied``, which is by event."""

    bytes_in: NDArray[np.int64]
    bytes_out: NDArray[np.int64]
    seconds: NDArray[np.float64]
    stall: NDArray[np.float64]
    occupied: NDArray[np.uint64]
    most: int
    over: int
    foreseen: int
    departures: int
    wrong: int


@cache
def _library() -> ctypes.CDLL:
    folder = pager_folder()
    here = Path(__file__).resolve().parent
    sources = [here / "replay.cc", *sorted((folder / "policy").glob("*.cc"))]
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise CompileError("no C++ compiler: install g++ or set CXX")
    digest = hashlib.sha256(" ".join((compiler, *_FLAGS)).encode())
    for path in [*sources, *sorted(folder.rglob("*.h"))]:
        digest.update(path.read_bytes())
    cached = user_cache_path("lmsreplay")
    library = cached / f"replay-{digest.hexdigest()[:16]}.so"
    if not library.exists():
        cached.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached) as work:
            built = Path(work) / library.name
            command = [compiler, *_FLAGS, f"-I{folder}", *map(str, sources), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CompileError(f"{' '.join(command)}\n{done.stderr}")
            built.replace(library)  # atomic: two runs at once do not see half a library
    loaded = ctypes.CDLL(str(library))
    loaded.lmsreplay_run.argtypes = (ctypes.POINTER(_Input), ctypes.c_char_p, ctypes.POINTER(_Output))
    loaded.lmsreplay_run.restype = None
    loaded.lmsreplay_policy_name.argtypes = (ctypes.c_size_t,)
    loaded.lmsreplay_policy_name.restype = ctypes.c_char_p
    return loaded


@cache
def policies() -> tuple[str, ...]:
    """The names of the pager's policies."""
    found = map(_library().lmsreplay_policy_name, itertools.count())
    return tuple(name.decode() for name in itertools.takewhile(lambda name: name is not None, found))


def next_use(trace: Trace) -> NDArray[np.int64]:
    """For each event, the next one that reads or writes its block; the number of events when there is none."""
    events = len(trace.kind)
    following = np.full(events, events, np.int64)
    upcoming: dict[int, int] = {}
    columns = zip(trace.kind[::-1].tolist(), trace.block[::-1].tolist(), strict=True)
    for back, (kind, block) in enumerate(columns):
        event = events - 1 - back
        if block >= 0:
            following[event] = upcoming.get(block, events)
        if kind in (READ, WRITE):
            upcoming[block] = event
        elif kind == FREE:
            upcoming.pop(block, None)
    return following


def replay(
    trace: Trace,
    policy: str,
    limit: int,
    *,
    evict: NDArray[np.uint8] | None = None,
    compute: NDArray[np.float64] | None = None,
    bandwidth: float = 0.0,
    ahead: bool = False,
) -> Result:
    """Plays the trace.

    :param policy: one of :func:`policies`, or ``offline`` (Belady's rule; with ``evict`` that schedule).
    :param limit: bytes.
    :param evict: by event, whether the schedule evicts its block in the gap after it.
    :param compute: by event, seconds of computation after it; needed with ``bandwidth``.
    :param bandwidth: bytes per second of the link in each direction; 0 for copies that take no time.
    :param ahead: carry out the policy's early victims and prefetches.
    """
    iterations = len(trace.iterations) - 1
    events = len(trace.kind)
    kind = np.ascontiguousarray(trace.kind, np.uint8)
    thread = np.ascontiguousarray(trace.thread, np.int32)
    block = np.ascontiguousarray(trace.block, np.int64)
    nbytes = np.ascontiguousarray(trace.nbytes, np.int64)
    seconds_of = np.ascontiguousarray(np.zeros(events) if compute is None else compute, np.float64)
    iteration = np.ascontiguousarray(trace.iteration_of(), np.int64)
    following = next_use(trace)
    planned = None if evict is None else np.ascontiguousarray(evict, np.uint8)
    bytes_in, bytes_out = np.zeros(iterations, np.int64), np.zeros(iterations, np.int64)
    seconds, stall = np.zeros(iterations), np.zeros(iterations)
    occupied = np.zeros(events, np.uint64)
    given = _Input(
        events=events,
        kind=kind.ctypes.data,
        thread=thread.ctypes.data,
        block=block.ctypes.data,
        nbytes=nbytes.ctypes.data,
        compute=seconds_of.ctypes.data,
        iteration=iteration.ctypes.data,
        next_use=following.ctypes.data,
        evict=None if planned is None else planned.ctypes.data,
        limit=limit,
        bandwidth=bandwidth,
        ahead=int(ahead),
    )
    output = _Output(
        bytes_in=bytes_in.ctypes.data,
        bytes_out=bytes_out.ctypes.data,
        seconds=seconds.ctypes.data,
        stall=stall.ctypes.data,
        occupied=occupied.ctypes.data,
    )
    _library().lmsreplay_run(ctypes.byref(given), policy.encode(), ctypes.byref(output))
    return Result(
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        seconds=seconds,
        stall=stall,
        occupied=occupied,
        most=int(output.most),
        over=int(output.over),
        foreseen=int(output.foreseen),
        departures=int(output.departures),
        wrong=int(output.wrong),
    )
