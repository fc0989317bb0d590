"""A disk's own speed: bytes read and written beside one another, past the page cache."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

MIB = 1 << 20
IN_FLIGHT = 8  # requests at a time, of 1 MiB each


def copy(connection: Connection, file: Path) -> None:
    """Answers bytes to read and bytes to write, both rounded up to MiB, with the seconds that the disk took for them.

    `file` exists, has its blocks on the disk, and is overwritten.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_DIRECT)
    places = os.fstat(descriptor).st_size // MIB
    own = threading.local()

    def prepare() -> None:
        own.buffer = mmap.mmap(-1, MIB)  # begins where a page does, as O_DIRECT wants
        own.buffer.write(os.urandom(MIB))

    def request(move: Callable[..., int], index: int) -> None:
        if move(descriptor, [own.buffer], index % places * MIB) != MIB:
            raise OSError(f"{file}: less than 1 MiB moved")

    with ThreadPoolExecutor(IN_FLIGHT, initializer=prepare) as pool:
        while True:
            requests = []
            for move, nbytes in zip((os.preadv, os.pwritev), connection.recv(), strict=True):
                count = -(-nbytes // MIB)
                requests += [((index + 0.5) / count, move, index) for index in range(count)]
            requests.sort(key=lambda one: one[0])  # reads and writes mixed, each at an even rate
            begin = time.perf_counter()
            done = [pool.submit(request, move, index) for _, move, index in requests]
            for one in done:
                one.result()
            connection.send(time.perf_counter() - begin)
