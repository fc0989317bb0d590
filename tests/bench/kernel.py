"""What Linux offers for little RAM: a memory cgroup, and swap on a file or on zram; and for a slow disk. Needs root; whatever is made
here goes again."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

MIB = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")
ZRAM = Path("/sys/class/zram-control")


def _root(controller: str) -> tuple[Path, bool]:
    """Where cgroups with that controller of version 1 are made, and whether there is that version."""
    first = (CGROUPS / controller).is_dir()
    return (CGROUPS / controller if first else CGROUPS), first


def swaps() -> list[str]:
    """What the kernel swaps to."""
    return [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]


def left_over(name: str) -> list[str]:
    """Cgroups whose name begins with `name`."""
    groups = {path for controller in ("memory", "blkio") for path in _root(controller)[0].glob(f"{name}*")}
    return sorted(map(str, groups))


@contextmanager
def _cgroup(name: str, controller: str, second: str) -> Iterator[Path]:
    """A cgroup with that controller of version 1, or the second of version 2."""
    root, first = _root(controller)
    with ExitStack() as stack:
        controllers = root / "cgroup.subtree_control"
        if not first and second not in controllers.read_text().split():
            controllers.write_text(f"+{second}")
            stack.callback(controllers.write_text, f"-{second}")
        folder = root / name
        folder.mkdir()
        stack.callback(folder.rmdir)
        yield folder


@contextmanager
def cgroup(name: str, nbytes: int | None) -> Iterator[Path]:
    """A memory cgroup with room for `nbytes` bytes of RAM; None: for all there is. Swap is not limited."""
    with _cgroup(name, "memory", "memory") as folder:
        first = folder / "memory.limit_in_bytes"
        if nbytes is not None:
            (first if first.exists() else folder / "memory.max").write_text(str(nbytes))
        yield folder


@contextmanager
def slow_disk(name: str, folder: Path, speed: int) -> Iterator[Path]:
    """A cgroup whose processes read at most `speed` bytes a second from the disk that `folder` is on, and write as much."""
    number = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    disk = ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()
    with _cgroup(name, "blkio", "io") as group:
        if (group / "blkio.throttle.read_bps_device").exists():
            for direction in ("read", "write"):
                (group / f"blkio.throttle.{direction}_bps_device").write_text(f"{disk} {speed}")
        else:
            (group / "io.max").write_text(f"{disk} rbps={speed} wbps={speed}")
        yield group


def peak(group: Path) -> int:
    """The most bytes of RAM that a cgroup has had."""
    first = group / "memory.max_usage_in_bytes"
    return int((first if first.exists() else group / "memory.peak").read_text())


def swapped() -> tuple[int, int]:
    """Bytes that the kernel has read from swap, and written to it, since it started."""
    pages = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(pages["pswpin"]) * mmap.PAGESIZE, int(pages["pswpout"]) * mmap.PAGESIZE


def write_file(file: Path, nbytes: int, chunk: bytes) -> None:
    """Makes a file of `nbytes` bytes, or up to a chunk more, all of them on the disk. Only the owner may read it."""
    with file.open("wb") as out:
        file.chmod(0o600)
        for _ in range(0, nbytes, len(chunk)):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


@contextmanager
def _swap_on(device: Path) -> Iterator[None]:
    _run("mkswap", device)
    _run("swapon", device)
    try:
        yield
    finally:
        _run("swapoff", device)


@contextmanager
def swap_file(folder: Path, nbytes: int) -> Iterator[Callable[[], int]]:
    """Swap on a new file in `folder`. Gives a function for the most bytes of RAM that it has taken: 0."""
    file = folder / "swapfile"
    try:
        write_file(file, nbytes, bytes(MIB))
        with _swap_on(file):
            yield lambda: 0
    finally:
        file.unlink(missing_ok=True)


@contextmanager
def zram(folder: Path, nbytes: int) -> Iterator[Callable[[], int]]:
    """Swap on a new zram device; `folder` is not used. Gives a function for the most bytes of RAM that it has taken."""
    number = (ZRAM / "hot_add").read_text().strip()
    block = Path(f"/sys/block/zram{number}")
    try:
        (block / "disksize").write_text(str(nbytes))
        with _swap_on(Path(f"/dev/zram{number}")):
            yield lambda: int((block / "mm_stat").read_text().split()[4])  # mem_used_max
    finally:
        (block / "reset").write_text("1")
        (ZRAM / "hot_remove").write_text(number)


def zram_works(folder: Path) -> bool:
    """Whether this kernel has zram, and lets us swap to it."""
    try:
        with zram(folder, 16 * MIB):
            return True
    except OSError as error:
        print(f"without zram: {error}")
        return False
