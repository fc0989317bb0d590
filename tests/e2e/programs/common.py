"""What checks of either framework share. It imports neither."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from skip import Skip

MIB = 1 << 20
REPOSITORY = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    """tools/lmsbuild/programs/<name>.py, from the checkout and without installing the tool."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "tools" / "lmsbuild" / "programs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def raises(kind: type[BaseException] | tuple[type[BaseException], ...], *words: str) -> Iterator[None]:
    """What runs inside must raise ``kind`` with every word in its text."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{error!r} does not say {missing}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def in_fork(work: Callable[[], None]) -> None:
    """Runs ``work`` in a forked child; raises when it fails there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            if status != 0:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"


class Group:
    """A memory control group, where this process may make one; else nothing, and resident memory has to tell."""

    def __init__(self) -> None:
        root = Path("/sys/fs/cgroup")
        first = (root / "memory").is_dir()  # version 1
        self.folder: Path | None = (root / "memory" if first else root) / f"lms-test-{os.getpid()}"
        self._limit = "memory.limit_in_bytes" if first else "memory.max"
        try:
            self.folder.mkdir()
            assert (self.folder / self._limit).exists()
        except (OSError, AssertionError):
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            self.folder = None

    def add(self, pid: int) -> None:
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(pid))

    def limit(self, nbytes: int) -> None:
        """From now on more is a kill. OSError: the kernel refuses, as more is used."""
        if self.folder is not None:
            (self.folder / self._limit).write_text(str(nbytes))

    def forbid_swap(self) -> None:
        """After the first limit."""
        for name, value in (("memory.swappiness", "0"), ("memory.swap.max", "0")):
            if self.folder is not None and (self.folder / name).exists():
                (self.folder / name).write_text(value)

    def remove(self) -> None:
        if self.folder is not None:
            self.folder.rmdir()


def entering(group: Group | None, *words: str) -> list[str]:
    """The words of a command that runs in the group."""
    enter = [] if group is None else ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group.folder)]
    return [*enter, *words]


@contextmanager
def group_of(nbytes: int) -> Iterator[Group]:
    """A group for processes of a check, without swap."""
    group = Group()
    if group.folder is None:
        raise Skip("no memory control group can be made here")
    try:
        group.limit(nbytes)
        group.forbid_swap()
        yield group
    finally:
        while True:
            left = (group.folder / "cgroup.procs").read_text().split()
            if not left:
                break
            for pid in left:  # of a check that failed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)
        group.remove()


@contextmanager
def directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        yield name


def files_in(folder: str) -> list[int]:
    """Descriptors of the store's files there."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{number}"
        if os.path.islink(link) and os.readlink(link).startswith(f"{folder}/lms-store-"):
            found.append(int(number))
    return found


def spoil(folder: str, tensors: int) -> None:
    """Changes a byte of each of the first tensors of a MiB in the store's only file."""
    (number,) = files_in(folder)
    size = os.fstat(number).st_size
    with open(f"/proc/self/fd/{number}", "r+b", buffering=0) as file:
        for offset in range(4096, tensors * MIB, MIB):
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1]))
    assert os.fstat(number).st_size == size
