"""What the kernel is handed without anybody's notice: raw pointers in system calls, handlers of signals, descriptors."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import threading

import torch
from common import MIB, directory
from support import away, data, enable, page_out, python, same, stat


def memory(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """The tensor's bytes by their address alone."""
    return (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())


def check_write_and_read() -> None:
    expected = data(2)
    enable()
    source, target = away(expected), away(torch.zeros_like(expected))
    with directory() as folder, open(os.path.join(folder, "file"), "w+b", buffering=0) as file:
        faults = stat("faults")
        assert os.write(file.fileno(), memory(source)) == 2 * MIB
        file.seek(0)
        page_out()
        assert file.readinto(memory(target)) == 2 * MIB
        assert stat("faults") == faults
        page_out()
        same(target, expected)
        target.zero_()
        page_out()
        float(target[0])  # resident, and clean: as good as away for a call that writes
        file.seek(0)
        assert os.readv(file.fileno(), [memory(target)]) == 2 * MIB
        page_out()
        same(target, expected)


def check_fwrite() -> None:
    expected = data(2)
    enable()
    tensor = away(expected)
    libc = ctypes.CDLL(None)
    libc.fopen.restype = libc.fwrite.restype = ctypes.c_size_t
    libc.fwrite.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
    libc.fclose.argtypes = [ctypes.c_size_t]
    with directory() as folder:
        path = os.path.join(folder, "file")
        file = libc.fopen(path.encode(), b"w")
        assert libc.fwrite(tensor.data_ptr(), 4, tensor.numel(), file) == tensor.numel()
        assert libc.fclose(file) == 0
        with open(path, "rb") as written:
            assert written.read() == expected.numpy().tobytes()


def check_sockets() -> None:
    expected = data(2)
    enable()
    source, target = away(expected), away(torch.zeros_like(expected))
    one, other = socket.socketpair()
    sender = threading.Thread(target=lambda: one.sendall(memory(source)))
    sender.start()
    view, received = memoryview(memory(target)).cast("B"), 0
    while received < len(view):
        torch.lms.reclaim("cpu")  # between the calls
        received += other.recv_into(view[received:])
    sender.join()
    page_out()
    same(target, expected)


def check_subprocess_input() -> None:
    expected = data(1)
    enable()
    tensor = away(expected)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.communicate(memory(tensor))[0] == expected.numpy().tobytes()


def first(tensor: torch.Tensor) -> float:
    """By a raw pointer."""
    return ctypes.c_float.from_address(tensor.data_ptr()).value


def check_faulthandler() -> None:
    expected = data(1)
    enable()
    tensor = away(expected)
    faulthandler.enable()  # after the last block has left
    assert first(tensor) == float(expected[0])
    faulthandler.disable()
    page_out()
    assert first(tensor) == float(expected[0])


def check_signal() -> None:
    expected = data(1)
    enable()
    tensor = away(expected)
    called = []
    before = signal.signal(signal.SIGSEGV, lambda *_: called.append(1))
    assert before == signal.SIG_DFL
    assert first(tensor) == float(expected[0])
    assert called == []
    signal.raise_signal(signal.SIGSEGV)
    assert called == [1]
    assert signal.signal(signal.SIGSEGV, signal.SIG_DFL) is not None
    page_out()
    assert first(tensor) == float(expected[0])


def check_faulthandler_reports_what_is_not_ours() -> None:
    program = """
import ctypes, faulthandler, torch
torch.lms.enable("cpu", limit=1 << 20)
tensor = torch.ones(1 << 20)
torch.lms.reclaim("cpu")
faulthandler.enable()
assert ctypes.c_float.from_address(tensor.data_ptr()).value == 1
print("alive", flush=True)
ctypes.string_at(0)
"""
    done = python(program)
    assert done.stdout == "alive\n", done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert done.returncode == -signal.SIGSEGV


def check_closed_descriptors() -> None:
    with directory() as folder:
        program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import torch
from support import away, data, page_out, same
torch.lms.enable("cpu", limit=8 << 20, store={folder!r})
tensors = [away(data(1, seed)) for seed in range(4)]
os.closerange(3, 1 << 16)
theirs = os.open({folder!r} + "/theirs", os.O_RDWR | os.O_CREAT)
os.pwrite(theirs, b"t" * (1 << 20), 0)
for number in range(3, 1 << 12):
    if number != theirs:
        os.dup2(theirs, number)
tensors[0] += 1
page_out()
same(tensors, [data(1, 0) + 1, *(data(1, seed) for seed in range(1, 4))])
assert os.fstat(theirs).st_size == 1 << 20
assert os.pread(theirs, 1 << 20, 0) == b"t" * (1 << 20)
print("alive")
"""
        done = python(program)
        assert done.stdout == "alive\n", done.stderr


def check_relative_store() -> None:
    expected = data(1)
    with directory() as folder:
        os.mkdir(f"{folder}/store")
        os.chdir(folder)
        enable(8 * MIB, store="store")
        os.chdir("/")
        same(away(expected), expected)
