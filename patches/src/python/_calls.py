"""What a program may ask of a device for which LMS is enabled: the functions that are the same in every framework."""

from __future__ import annotations

import atexit
import ctypes
import functools
from typing import TYPE_CHECKING

from . import _arguments, _devices, _library

if TYPE_CHECKING:
    import os

    from ._sizes import Size


@functools.lru_cache(None)
def shut_down_at_exit() -> None:
    # The background workers must not outlive the interpreter; blocks stay readable.
    atexit.register(lambda: [_library.load().lms_shutdown(pager) for pager in _library.pagers()])


def _enabled_pager(device: _devices.AnyDevice) -> int:
    found = _devices.find(device)
    found.kind.settle(found.index)
    pager = _library.pager(found) if _library.enabled(found) else None
    if pager is None:
        raise RuntimeError(f"LMS is not enabled; call {_devices.PACKAGE}.enable('{found}', limit=...) first")
    return pager


def limit(device: _devices.AnyDevice) -> int:
    """The limit in bytes.

    :raises RuntimeError: LMS is not enabled.
    """
    return _library.load().lms_limit(_enabled_pager(device))


def set_limit(device: _devices.AnyDevice, nbytes: Size) -> None:
    """Changes the limit, and pages out until what is resident fits or nothing more can leave.

    Where the process shares a budget, it is a limit of its own below its share.

    :param nbytes: the new limit, as for :func:`enable`: bytes, "8GiB", or 0.5 of the device's memory.
    :raises ValueError: the device has less memory than that.
    :raises OSError: the store could not be written; what was to leave is still resident.
    :raises RuntimeError: LMS is not enabled, or the device has failed.
    """
    found = _devices.find(device)
    if _arguments.is_auto(nbytes):
        raise ValueError(f"nbytes: 'auto' is for {_devices.PACKAGE}.enable('{found}', limit='auto'), at any time")
    limit = _arguments.check_limit("nbytes", nbytes, found.memory)
    pager = _enabled_pager(device)
    _library.check(_library.load().lms_set_limit(pager, _arguments.check_capacity("nbytes", limit, found)))


def reclaim(device: _devices.AnyDevice, nbytes: Size | None = None) -> int:
    """Pages out inactive tensors now.

    :param nbytes: stop when this many bytes have left, or with 0.5 this part of what is resident; None pages out
        everything that can leave.
    :returns: the bytes that left.
    :raises OSError: the store could not be written; the tensors are intact.
    :raises RuntimeError: LMS is not enabled, or the device has failed.
    """
    amount = _arguments.UINT64_MAX
    if nbytes is not None:
        amount = _arguments.check_size("nbytes", nbytes, 0, lambda: stats(device)["resident_bytes.current"])
    pager = _enabled_pager(device)
    reclaimed = ctypes.c_uint64()
    _library.check(_library.load().lms_reclaim(pager, amount, ctypes.byref(reclaimed)))
    return reclaimed.value


def stats(device: _devices.AnyDevice) -> dict[str, int]:
    """The pager's statistics by name; all zero before the first :func:`enable`. docs/statistics.md explains each."""
    return _library.statistics(_devices.find(device))


def reset_peak_stats(device: _devices.AnyDevice) -> None:
    """Sets every ``*.peak`` of :func:`stats` to its current value."""
    _library.reset_peaks(_devices.find(device))


def over_limit_operation(device: _devices.AnyDevice) -> str:
    """The operation that needed most over the limit since the peaks of :func:`stats` were reset.

    By how many bytes is ``over_limit_bytes.peak``. In PyTorch as ``"aten::mm"``; before 1.6 names have no namespace, and
    lists and copies no name. In TensorFlow as ``"MatMul gradient_tape/MatMul_1"``, the type and the name in the graph.
    Empty when the limit was never passed, or not for an operation: what a program, a compiled kernel or a library's own
    thread reaches through raw pointers has no name.
    """
    return _library.over_limit_operation(_devices.find(device))


def trace_start(device: _devices.AnyDevice, path: str | os.PathLike[str]) -> None:
    """Records every use of every managed tensor to the text file ``path``, until :func:`trace_stop`.

    :raises OSError: the file cannot be written.
    :raises RuntimeError: LMS is not enabled, or a trace is being recorded.
    """
    name = _arguments.check_path(path)
    pager = _enabled_pager(device)
    with open(name, "ab"):  # for Python's own error; a trace that is being recorded to there stays
        pass
    _library.check(_library.load().lms_trace_start(pager, name))


def trace_stop(device: _devices.AnyDevice) -> None:
    """Ends what :func:`trace_start` began, and closes the file."""
    pager = _enabled_pager(device)
    _library.check(_library.load().lms_trace_stop(pager))
