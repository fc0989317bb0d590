"""A wheel that has NVIDIA's runtime linked into it: that one asks the driver for what no documentation tells.

What the library has of it is replaced by jumps to the simulated one. LMS_TEST_STATIC_RUNTIME names a file with the
library, the simulated runtime, and a line with the place and the name of each function.
"""

from __future__ import annotations

import ctypes
import mmap
import os

JUMP = 12  # bytes: mov rax, ADDRESS; jmp rax


def _base(library: str) -> int:
    with open("/proc/self/maps") as file:
        return min(int(line.split("-")[0], 16) for line in file if line.rstrip().endswith(library))


def redirect() -> None:
    """Has to be called after TensorFlow was imported, and before it asks for a GPU."""
    description = os.environ.get("LMS_TEST_STATIC_RUNTIME")
    if description is None:
        return
    with open(description) as file:
        library, runtime, *functions = file.read().splitlines()
    base, simulated = _base(library), ctypes.CDLL(runtime)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in functions:
        offset, name = line.split()
        target = ctypes.cast(getattr(simulated, name), ctypes.c_void_p).value
        assert target is not None
        place = base + int(offset, 16)
        begin = place // mmap.PAGESIZE * mmap.PAGESIZE
        everything = 1 | 2 | 4  # PROT_READ, PROT_WRITE, PROT_EXEC
        if protect(begin, 2 * mmap.PAGESIZE, everything) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        code = b"\x48\xb8" + target.to_bytes(8, "little") + b"\xff\xe0"
        assert len(code) == JUMP
        ctypes.memmove(place, code, JUMP)
