"""Large Model Support: train models that are larger than the memory they run in.

While LMS is enabled for a device, every tensor of at least ``min_size`` bytes lives in a block that the pager manages.
When the blocks together need more than ``limit`` bytes, the pager copies inactive ones to a store (host memory, or a
file) and gives their memory to others; before an operation uses a block, it is back at the same address. Results are
those of the run without LMS, to the bit where PyTorch itself is deterministic.

Every size is in bytes. Every function may be called from any thread, at any time, with live tensors around. A wrong
argument raises :class:`TypeError` or :class:`ValueError` that names it. Devices: ``"cpu"``, and in a build with CUDA
``"cuda:0"``, ``"cuda:1"`` and so on, each with a limit of its own; ``"cuda"`` is the current one.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import operator
import os
import threading
from typing import TYPE_CHECKING, Any

import torch

from . import _devices, _library

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self


__all__ = [
    "disable",
    "enable",
    "is_enabled",
    "limit",
    "pin",
    "reclaim",
    "reset_peak_stats",
    "set_limit",
    "stats",
    "trace_start",
    "trace_stop",
]

_POLICIES = ("lru", "iteration")
_UINT64_MAX = 2**64 - 1

_lock = threading.RLock()  # serialises enable and disable
_active = False  # whether LMS is enabled for any device
# The options, and the min_size, with which a CUDA device is enabled when it is first asked for that much memory; None:
# it is not. Says nothing about devices that were enabled before.
_at_first_use: tuple[_library.Options, int] | None = None


def _check_bytes(name: str, value: int, minimum: int) -> int:
    # bool is an int, but limit=True is a mistake; operator.index refuses float and takes NumPy's integers.
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int (bytes), got {type(value).__name__}") from None
    if not minimum <= number <= _UINT64_MAX:
        raise ValueError(f"{name}: expected at least {minimum} and at most 2**64 - 1 bytes, got {number}")
    return number


def _check_store(store: str | os.PathLike[str] | None) -> bytes | None:
    if store is None:
        return None
    try:
        path = os.fsencode(store)
    except TypeError:
        raise TypeError(f"store: expected None, a str or an os.PathLike, got {type(store).__name__}") from None
    if b"\0" in path or not os.path.isdir(path):
        raise ValueError(f"store: {os.fsdecode(path)!r} is not a directory that exists")
    return path


def _check_policy(policy: str) -> bytes:
    if not isinstance(policy, str):
        raise TypeError(f"policy: expected a str, got {type(policy).__name__}")
    if policy not in _POLICIES:
        raise ValueError(f"policy: expected one of {', '.join(map(repr, _POLICIES))}, got {policy!r}")
    return policy.encode()


def _check_limit(name: str, value: int, device: _devices.Device) -> int:
    limit = _check_bytes(name, value, 0)
    capacity = device.kind.capacity(device.index)
    if capacity is not None and limit > capacity:
        raise ValueError(f"{name}: {limit} bytes is more than the {capacity} bytes of memory that '{device}' has")
    return limit


def _default_limit(device: _devices.Device) -> int:
    if not device.kind.has_default_limit:
        raise TypeError(f"limit: '{device}' needs one; expected an int (bytes), got None")
    return _UINT64_MAX


def _is_known(device: torch.device) -> bool:
    """Whether LMS was ever enabled for the device."""
    return _library.pager(_devices.find(device)) is not None


def _waits(device: _devices.Device) -> bool:
    """Whether the device is going to be enabled when it is first used."""
    return _at_first_use is not None and device.kind.name == "cuda" and _library.pager(device) is None


def _no_longer_wait(device: _devices.Device) -> None:
    with _lock:
        if _waits(device):
            options, min_size = _at_first_use
            _library.check(_library.call(device, "enable", ctypes.byref(options), min_size))


def _enabled_pager(device: str | torch.device) -> int:
    found = _devices.find(device)
    _no_longer_wait(found)
    pager = _library.pager(found) if _library.enabled(found) else None
    if pager is None:
        raise RuntimeError(f"LMS is not enabled; call torch.lms.enable('{found}', limit=...) first")
    return pager


def _switched() -> None:
    """Wraps what has to be while LMS is enabled for some device, and nothing else. The caller holds the lock."""
    global _active
    from . import _handout, _memory_stats, _unobserved, _wrapping

    active = {device.kind.name for device in _library.devices() if _library.enabled(device) or _waits(device)}
    rows = _handout.ROWS + _memory_stats.ROWS + _unobserved.rows()
    _wrapping.apply({row for row in rows if active.intersection(row.devices)})
    _active = bool(active)


@functools.lru_cache(None)
def _shut_down_at_exit() -> None:
    # The background workers must not outlive the interpreter; blocks stay readable.
    atexit.register(lambda: [_library.load().lms_shutdown(pager) for pager in _library.pagers()])


def enable(
    device: str | torch.device,
    *,
    limit: int | None = None,
    min_size: int | None = None,
    store: str | os.PathLike[str] | None = None,
    policy: str = "iteration",
    strict: bool = False,
) -> None:
    """Enables LMS, or reconfigures it when it is enabled.

    Tensors that exist already keep their memory; LMS manages what is allocated from now on.

    :param device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    :param limit: bytes that managed tensors may occupy in the device's memory, at least 0. It is passed only while
        everything resident is in use; by how much is in :func:`stats`. None, which is for CUDA: what is free on the
        device now, less 5 % for everything that is no managed tensor.
    :param min_size: bytes from which on a tensor is managed, at least 1; smaller ones use the stock allocator. None is
        64 KiB on ``"cpu"`` and 1 MiB on CUDA.
    :param store: an existing directory in which a file holds what is paged out, or None to hold it in host memory. On
        ``"cpu"`` that is the same memory, so a store in a directory is what makes room there.
    :param policy: ``"iteration"`` learns one training iteration, then evicts what is needed last and prefetches what is
        needed next; ``"lru"`` evicts what was used least recently.
    :param strict: what needs more than ``limit`` raises :class:`torch.cuda.OutOfMemoryError`: on ``"cpu"`` every operation, on
        CUDA every allocation. There, bringing an operation's inputs back passes the limit, as without ``strict``: an
        operation cannot be stopped any more, and without its inputs it would fail on the device.
    :raises ValueError: there is no such device, or it has less memory than ``limit``.
    :raises OSError: the store cannot be created in that directory.
    :raises RuntimeError: this build of PyTorch has no LMS; the machine cannot provide the address space; the driver or
        the device cannot manage virtual memory; or CUDA memory comes from another allocator than PyTorch's own.
    """
    found = _devices.find(device)
    if not isinstance(strict, bool):
        raise TypeError(f"strict: expected a bool, got {type(strict).__name__}")
    if limit is not None:
        limit = _check_bytes("limit", limit, 0)
    min_size = found.kind.min_size if min_size is None else _check_bytes("min_size", min_size, 1)
    directory, policy_name = _check_store(store), _check_policy(policy)
    found.kind.prepare(found.index)  # without the lock: to start CUDA may run what set_enabled_lms left for that time
    with _lock:
        options = _library.Options(
            struct_size=ctypes.sizeof(_library.Options),
            limit=_default_limit(found) if limit is None else _check_limit("limit", limit, found),
            store=directory,
            policy=policy_name,
            strict=strict,
            address_space=0,
        )
        _library.check(_library.call(found, "enable", ctypes.byref(options), min_size))
        _shut_down_at_exit()
        _switched()


def _enable_at_first_use(limit: int | None, min_size: int) -> None:
    """Enables every CUDA device that has never been enabled as soon as it is asked for a tensor of ``min_size`` bytes.

    Until then a device that the process sees but does not use gets neither a context nor a pager.

    :param limit: bytes of each device, or None: what is free on it at that time, less 5 %.
    """
    global _at_first_use
    with _lock:
        for index in range(torch.cuda.device_count()) if limit is not None else ():
            _check_limit("limit", limit, _devices.Device(_devices.KINDS["cuda"], index))
        options = _library.Options(
            struct_size=ctypes.sizeof(_library.Options),
            limit=_UINT64_MAX if limit is None else limit,
            policy=b"iteration",
        )
        every = _devices.Device(_devices.KINDS["cuda"], -1)
        _library.check(_library.call(every, "enable", ctypes.byref(options), min_size))
        _at_first_use = (options, min_size)
        _shut_down_at_exit()
        _switched()


def _disable_at_first_use() -> None:
    """Ends what :func:`_enable_at_first_use` began, for the devices that were not used since."""
    global _at_first_use
    with _lock:
        if _at_first_use is not None:
            _at_first_use = None
            _library.check(_library.call(_devices.Device(_devices.KINDS["cuda"], -1), "disable"))
            _switched()


def disable(device: str | torch.device) -> None:
    """Brings everything back and lets new tensors use the stock allocator; does nothing when LMS is not enabled.

    Tensors that LMS managed stay where they are, resident, until they are freed.

    :raises torch.cuda.OutOfMemoryError: the device has too little memory for everything; LMS stays enabled.
    :raises OSError, RuntimeError: the store could not be read, or the device has failed; LMS stays enabled.
    """
    found = _devices.find(device)
    with _lock:
        _no_longer_wait(found)
        if _library.enabled(found):
            _library.check(_library.call(found, "disable"))
            _switched()


def is_enabled(device: str | torch.device) -> bool:
    """Whether LMS is enabled for ``device``; False for a device that cannot use it."""
    name, _ = _devices.parse(device)
    kind = _devices.KINDS.get(name)
    if kind is None or not kind.in_this_build():
        return False
    found = _devices.find(device)
    return _library.enabled(found) or _waits(found)


def limit(device: str | torch.device) -> int:
    """The limit in bytes.

    :raises RuntimeError: LMS is not enabled.
    """
    return _library.load().lms_limit(_enabled_pager(device))


def set_limit(device: str | torch.device, nbytes: int) -> None:
    """Changes the limit, and pages out until what is resident fits or nothing more can leave.

    :param nbytes: the new limit in bytes, at least 0.
    :raises ValueError: the device has less memory than that.
    :raises OSError: the store could not be written; what was to leave is still resident.
    :raises RuntimeError: LMS is not enabled, or the device has failed.
    """
    nbytes = _check_bytes("nbytes", nbytes, 0)
    pager = _enabled_pager(device)
    _library.check(_library.load().lms_set_limit(pager, _check_limit("nbytes", nbytes, _devices.find(device))))


def reclaim(device: str | torch.device, nbytes: int | None = None) -> int:
    """Pages out inactive tensors now.

    :param nbytes: stop when this many bytes have left; None pages out everything that can leave.
    :returns: the bytes that left.
    :raises OSError: the store could not be written; the tensors are intact.
    :raises RuntimeError: LMS is not enabled, or the device has failed.
    """
    nbytes = _UINT64_MAX if nbytes is None else _check_bytes("nbytes", nbytes, 0)
    pager = _enabled_pager(device)
    reclaimed = ctypes.c_uint64()
    _library.check(_library.load().lms_reclaim(pager, nbytes, ctypes.byref(reclaimed)))
    return reclaimed.value


def stats(device: str | torch.device) -> dict[str, int]:
    """The pager's statistics by name; all zero before the first :func:`enable`. docs/statistics.md explains each."""
    return _library.statistics(_devices.find(device))


def reset_peak_stats(device: str | torch.device) -> None:
    """Sets every ``*.peak`` of :func:`stats` to its current value."""
    pager = _library.pager(_devices.find(device))
    if pager is not None:
        _library.load().lms_reset_peaks(pager)


def trace_start(device: str | torch.device, path: str | os.PathLike[str]) -> None:
    """Records every use of every managed tensor to the text file ``path``, until :func:`trace_stop`.

    :raises OSError: the file cannot be written.
    :raises RuntimeError: LMS is not enabled.
    """
    try:
        name = os.fsencode(path)
    except TypeError:
        raise TypeError(f"path: expected a str or an os.PathLike, got {type(path).__name__}") from None
    pager = _enabled_pager(device)
    with open(name, "wb"):  # for Python's own error
        pass
    _library.check(_library.load().lms_trace_start(pager, name))


def trace_stop(device: str | torch.device) -> None:
    """Ends what :func:`trace_start` began, and closes the file."""
    pager = _enabled_pager(device)
    _library.check(_library.load().lms_trace_stop(pager))


def _never() -> bool:
    return False


# Whether a compiler traces the caller. Releases that cannot say it do not trace what asks for it either.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", _never)


class pin:
    """Keeps tensors resident while the ``with`` block runs: for code that takes raw pointers.

    ``with torch.lms.pin(*tensors): ...`` brings the tensors in, and none of them is paged out before the block ends.
    They count as written. What is pinned counts against the limit. Does nothing where LMS does not manage a tensor.
    Inside a compiled function it does nothing either: a compiled graph's inputs are pinned as it is called.

    On CUDA the tensors are there for work on any stream, and what was enqueued on any stream before the block ends
    finds them: the memory is not taken away before that work is done.

    :raises torch.cuda.OutOfMemoryError: the device has no room for them, or on ``"cpu"`` a strict limit has none.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"tensors[{index}]: expected a torch.Tensor, got {type(tensor).__name__}")
        self._tensors = tensors
        self._tokens: list[list[int]] = []  # a stack, since one object may be entered more than once

    def __enter__(self) -> Self:
        if not _is_compiling():
            tokens = torch.ops.lms.pin(list(self._tensors), True) if _library.is_loaded() else []
            self._tokens.append(tokens)
        return self

    def __exit__(self, *exception: object) -> None:
        if not _is_compiling():
            tokens = self._tokens.pop()
            if tokens:
                torch.ops.lms.unpin(tokens)


def pinned_call(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Decorates the method that runs a compiled graph, whose kernels bypass the dispatcher.

    The tensors among its inputs are pinned from start to end, what it allocates is protected until the end, and what
    it returns may be paged out from then on.
    """

    @functools.wraps(call)
    def call_pinned(self: Any, inputs: Any) -> Any:
        if not _active:
            return call(self, inputs)
        from . import _handout

        return _handout.call_graph(call, self, inputs)

    return call_pinned
