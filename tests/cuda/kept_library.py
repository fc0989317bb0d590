"""A library of stand-ins for a framework's kernels: compiled from the sources of its folder, and kept until they change."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from simulator.build import HERE as SIMULATOR
from simulator.build import KEPT_S, LAUNCHER, run


def kept_library(
    folder: Path, name: str, sources: Path, made_for: object, words: Callable[[], tuple[list[str], list[str]]]
) -> Path:
    """The library NAME-DIGEST.so in `folder`. The digest is that of what is in `sources`, of sim.h and of `made_for`.

    `words`: asked where it has to be built. The compiler's words for each source, and what the objects are linked with.
    Others of that name go when they were not asked for in the last KEPT_S seconds.
    """
    parts = sorted(path for path in sources.iterdir() if path.suffix in (".cc", ".h"))
    digest = hashlib.sha256(repr(made_for).encode())
    for path in (*parts, SIMULATOR / "sim.h"):
        digest.update(path.name.encode() + path.read_bytes())
    finished = folder.resolve() / f"{name}-{digest.hexdigest()[:16]}.so"
    if not finished.exists():
        compile_, linked = words()
        unfinished = finished.with_suffix(f".{os.getpid()}")
        unfinished.mkdir(parents=True)
        units = [path for path in parts if path.suffix == ".cc"]
        objects = [str(unfinished / f"{path.stem}.o") for path in units]
        with ThreadPoolExecutor(2) as pool:
            first = [*LAUNCHER, *compile_, f"-I{SIMULATOR}", "-c"]
            list(pool.map(run, ([*first, str(path), "-o", out] for path, out in zip(units, objects, strict=True))))
        run([*compile_, "-shared", *objects, *linked, "-o", str(unfinished / finished.name)])
        (unfinished / finished.name).replace(finished)
        shutil.rmtree(unfinished)
        for old in folder.glob(f"{name}-*.so"):
            if old != finished and old.stat().st_mtime < time.time() - KEPT_S:
                old.unlink()
    os.utime(finished)
    return finished
