"""The native library behind :mod:`torch.lms`: found, loaded once, its C functions declared, its failures raised.

Nothing is loaded before the first function of :mod:`torch.lms` that needs it is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


# A graft adds the first one next to PyTorch's own libraries; in a full build the second one has the same symbols.
_NAMES = ("libtorch_lms.so", "libtorch_cpu.so")

_OK, _INVALID_ARGUMENT, _OUT_OF_MEMORY, _STORE_FAILED, _UNSUPPORTED = range(5)


class Options(ctypes.Structure):
    """``lms_options`` of lms.h. Sizes are in bytes."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("limit", ctypes.c_uint64),
        ("store", ctypes.c_char_p),
        ("policy", ctypes.c_char_p),
        ("strict", ctypes.c_int),
        ("address_space", ctypes.c_uint64),
    ]


class _PinToken(ctypes.Structure):
    """``lms_pin_token`` of lms.h."""

    _fields_ = [("block", ctypes.c_void_p), ("generation", ctypes.c_uint64)]


_HANDLE = ctypes.c_void_p
_PROTOTYPES = {
    "lms_torch_cpu_enable": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.c_uint64]),
    "lms_torch_cpu_disable": (ctypes.c_int, []),
    "lms_torch_cpu_pager": (_HANDLE, []),
    "lms_shutdown": (None, [_HANDLE]),
    "lms_set_limit": (ctypes.c_int, [_HANDLE, ctypes.c_uint64]),
    "lms_limit": (ctypes.c_uint64, [_HANDLE]),
    "lms_owns": (ctypes.c_int, [_HANDLE, ctypes.c_void_p]),
    "lms_pin": (ctypes.c_int, [_HANDLE, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_PinToken)]),
    "lms_unpin": (None, [_HANDLE, _PinToken]),
    "lms_scope_begin": (None, [_HANDLE]),
    "lms_scope_end": (None, [_HANDLE]),
    "lms_reclaim": (ctypes.c_int, [_HANDLE, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]),
    "lms_statistic_name": (ctypes.c_char_p, [ctypes.c_size_t]),
    "lms_statistics": (ctypes.c_size_t, [_HANDLE, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]),
    "lms_reset_peaks": (None, [_HANDLE]),
    "lms_trace_start": (ctypes.c_int, [_HANDLE, ctypes.c_char_p]),
    "lms_trace_stop": (ctypes.c_int, [_HANDLE]),
    "lms_last_error": (ctypes.c_char_p, []),
}

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


def load() -> ctypes.CDLL:
    """Returns the library, loading it on the first call. Thread-safe.

    :raises RuntimeError: this build of PyTorch has no LMS.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _find()
        return _loaded


def _find() -> ctypes.CDLL:
    folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    for name in _NAMES:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            continue
        library = ctypes.CDLL(path)
        if hasattr(library, "lms_torch_cpu_enable"):
            for function, (result, arguments) in _PROTOTYPES.items():
                declared = getattr(library, function)
                declared.restype, declared.argtypes = result, arguments
            return library
    raise RuntimeError(
        f"this build of PyTorch has no Large Model Support: none of {', '.join(_NAMES)} in {folder} has it"
    )


def check(status: int) -> None:
    """Raises what a failed C function's ``lms_status`` stands for, with the library's own sentence.

    :raises ValueError: an option is wrong.
    :raises torch.OutOfMemoryError: no memory under the limit (strict), in the address space, or on the machine.
    :raises OSError: the host store could not be created, written or read.
    :raises RuntimeError: this machine, or this state, cannot do that.
    """
    if status == _OK:
        return
    message = load().lms_last_error().decode(errors="replace") or f"LMS failed with status {status}"
    if status == _INVALID_ARGUMENT:
        raise ValueError(message)
    if status == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(message)
    if status == _STORE_FAILED:
        raise OSError(message)
    raise RuntimeError(message)


@contextlib.contextmanager
def resident(pager: int, address: int) -> Iterator[None]:
    """Keeps the block that contains ``address`` resident; does nothing when the address is not LMS's."""
    library = load()
    token = _PinToken()
    check(library.lms_pin(pager, address, 1, ctypes.byref(token)))
    try:
        yield
    finally:
        library.lms_unpin(pager, token)
