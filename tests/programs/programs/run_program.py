"""run_program.py PROGRAM RUN...: runs a program of this folder several times, each in a forked process of its own.

A RUN is `stock`, without LMS; `ample`, with LMS and a limit that nothing reaches; or a limit as a fraction of the peak that
`ample`, which comes before, has found: `0.5`, or `0.5:store` with a folder as the store. The program is imported once, before
the forks. It runs in an empty folder, with one thread. Prints a JSON object a line, for each run: what became of it, the seconds
of processors, LMS's statistics of every rank, and a digest of every result and of every file that it left.

A program is a module with

    run(rank)   which returns its results: tensors, numbers and texts in any nesting
    prepare()   optional: called once, before the forks, in the folder that is `../..` of the one that it runs in
    RANKS       optional: the number of processes that run it at the same time; torch.distributed is ready in them
    EXCEPT      optional: patterns of files whose contents differ from run to run without LMS, too
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed
import torchvision_names  # noqa: F401  what several libraries import

AMPLE = 1 << 40  # bytes: nothing ever has to leave
MIN_SIZE = 16 << 10  # bytes: the models are small
LIMIT_SECONDS = 240


def digests(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """A name and a digest for every leaf of the results."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from digests(one, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            yield from digests(one, f"{name}[{index}]")
    elif isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().flatten()
        contents = hashlib.sha256(plain.view(torch.uint8).numpy()).hexdigest()[:16]
        yield name, f"{value.dtype} {tuple(value.shape)} {contents}"
    else:
        yield name, repr(value)


def file_digests(folder: Path, exceptions: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(fnmatch.fnmatch(name, pattern) for pattern in exceptions):
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def work(program: ModuleType, rank: int, options: dict[str, Any] | None) -> dict[str, Any]:
    if options is not None:
        torch.lms.enable("cpu", **options)
    ranks = getattr(program, "RANKS", 1)
    if ranks > 1:
        meeting = f"file://{Path.cwd().parent / 'meeting'}"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    found = dict(digests(program.run(rank), "result"))
    if ranks > 1:
        torch.distributed.destroy_process_group()
    return {"results": found, "stats": torch.lms.stats("cpu") if options is not None else {}}


def start(program: ModuleType, rank: int, options: dict[str, Any] | None, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            output = os.open(folder / f"output-{rank}", os.O_CREAT | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.alarm(LIMIT_SECONDS)
            os.chdir(folder / "work")
            found = work(program, rank, options)
            (folder / f"found-{rank}").write_text(json.dumps(found))
            status = 0
        finally:
            if status == 1:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child


def wait(children: list[int]) -> list[int]:
    """Their wait statuses. When one fails the others, which wait for it, are ended."""
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        child, status = os.wait()
        statuses[child] = status
        for other in children if status else ():
            if other not in statuses:
                os.kill(other, signal.SIGTERM)
    return [statuses[child] for child in children]


def run(program: ModuleType, options: dict[str, Any] | None, folder: Path) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)  # the same name in every run, since files may hold it
    ranks = range(getattr(program, "RANKS", 1))
    begin, before = time.monotonic(), _processors()
    statuses = wait([start(program, rank, options, folder) for rank in ranks])
    seconds, processors = time.monotonic() - begin, _processors() - before
    outcome = {"seconds": round(seconds, 3), "processors": round(processors, 3)}
    if any(statuses):
        texts = [(folder / f"output-{rank}").read_text(errors="replace")[-6000:] for rank in ranks]
        return {**outcome, "failure": f"wait statuses {statuses}\n" + "\n".join(texts)}
    found = [json.loads((folder / f"found-{rank}").read_text()) for rank in ranks]
    results = {f"rank {rank}: {name}": value for rank in ranks for name, value in found[rank]["results"].items()}
    results |= file_digests(folder / "work", getattr(program, "EXCEPT", ()))
    return {**outcome, "results": results, "stats": [one["stats"] for one in found]}


def _processors() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def options_of(asked: str, peak: int | None, folder: Path) -> dict[str, Any] | None:
    """The arguments of torch.lms.enable."""
    if asked == "stock":
        return None
    fraction, _, store = asked.partition(":")
    if fraction == "ample":
        limit = AMPLE
    else:
        assert peak is not None, "`ample` finds the peak, and has to come first"
        limit = int(float(fraction) * peak)
    return {"limit": limit, "min_size": MIN_SIZE, "store": str(folder) if store else None}


def main(name: str, runs: list[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        program = importlib.import_module(name)
        os.chdir(top)
        if hasattr(program, "prepare"):
            program.prepare()
        peak = None
        for asked in runs:
            outcome = run(program, options_of(asked, peak, top), top / "run")
            if asked == "ample" and "stats" in outcome:
                peak = max(each["allocated_bytes.peak"] for each in outcome["stats"])
            print(json.dumps({"run": asked, **outcome}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
