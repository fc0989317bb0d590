"""Times `channel.publish` and the packaging of a wheel, and prints tables in the form of docs/performance.md.

python tests/bench/channel_bench.py              # publishing 1, 100 and 1,000 packages
python tests/bench/channel_bench.py WHEEL        # packaging a patched wheel at several levels of compression
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rattler_build import assemble_package

from lmsbuild import paths
from lmsbuild.channel import channel
from lmsbuild.conda import packager

COUNTS = (1, 100, 1000)
SIZE = 1 << 20  # bytes in each package, which nothing compresses
LEVELS = (1, 6, 12, 16, 19)


def processor_seconds() -> float:
    """What this process and those that it started took, which other programs on the machine do not add to."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of processors."""
    start, before = time.monotonic(), processor_seconds()
    work()
    return time.monotonic() - start, processor_seconds() - before


def make(folder: Path, number: int) -> Path:
    files = folder / "files"
    files.mkdir(exist_ok=True)
    (files / "data").write_bytes(os.urandom(SIZE))
    made = assemble_package(
        f"package{number}", "1.0", "linux-64", "0", folder, files_dir=files, compression_level=1, detect_prefix=False
    )
    return Path(made.path)


def publishing(folder: Path) -> None:
    print("| packages | seconds | of processors | again, nothing new | one more | files read then |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    packages = [make(folder, number) for number in range(max(COUNTS) + 1)]
    for count in COUNTS:
        place = folder / f"channel-{count}"
        new = packages[count : count + 1]
        first, busy = timed(lambda place=place, count=count: channel.publish(place, packages[:count]))
        _, again = timed(lambda place=place: channel.publish(place, []))
        done = []
        _, more = timed(lambda place=place, new=new, done=done: done.append(channel.publish(place, new)))
        print(f"| {count:,} | {first:.1f} | {busy:.2f} | {again:.2f} | {more:.2f} | {done[0].hashed} |", flush=True)
        shutil.rmtree(place)


def packaging(folder: Path, wheel: Path) -> None:
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.0f} MB\n")
    print("| level | threads | seconds | of processors | MB |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    cores = os.cpu_count() or 1
    for level, threads in [*((level, cores) for level in LEVELS), (packager.LEVEL, 1)]:
        output = folder / f"{level}-{threads}"
        options = packager.Options(wheel, paths.recipes_folder(), output, (), test=False, level=level, threads=threads)
        seconds, busy = timed(lambda options=options: packager.build(options))
        package = max(output.glob("linux-*/*.conda"), key=lambda path: path.stat().st_size)  # the others are empty
        print(f"| {level} | {threads} | {seconds:.0f} | {busy:.0f} | {package.stat().st_size / 1e6:.0f} |", flush=True)
        shutil.rmtree(output)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="channel-bench-") as temporary:
        if len(sys.argv) > 1:
            packaging(Path(temporary), Path(sys.argv[1]))
        else:
            publishing(Path(temporary))
