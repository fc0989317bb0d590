"""Large Model Support: train models that are larger than the memory they run in.

While LMS is enabled for a device, every tensor of at least ``min_size`` bytes lives in a block that the pager manages.
When the blocks together need more than ``limit`` bytes, the pager copies inactive ones to a store (host memory, or a
file) and gives their memory to others; before an operation uses a block, it is back at the same address. Results are
those of the run without LMS, to the bit where PyTorch itself is deterministic.

Every size is in bytes. Every function may be called from any thread, at any time, with live tensors around. A wrong
argument raises :class:`TypeError` or :class:`ValueError` that names it. Devices: ``"cpu"``.
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

from . import _library

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
_pager: int | None = None  # the CPU pager's handle while LMS is enabled
_known_pager: int | None = None  # the same, from the first enable on: its blocks outlive disable


def _device_type(device: str | torch.device) -> str:
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device: expected a str or torch.device, got {type(device).__name__}")
    try:
        return torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"device: {error}") from None


def _check_device(device: str | torch.device) -> None:
    if _device_type(device) != "cpu":
        raise ValueError(f"device: {str(device)!r} cannot use LMS in this build of PyTorch; 'cpu' can")


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


def _enabled_pager(device: str | torch.device) -> int:
    _check_device(device)
    pager = _pager
    if pager is None:
        raise RuntimeError(f"LMS is not enabled; call torch.lms.enable({str(device)!r}, limit=...) first")
    return pager


def enable(
    device: str | torch.device,
    *,
    limit: int,
    min_size: int = 1 << 16,
    store: str | os.PathLike[str] | None = None,
    policy: str = "iteration",
    strict: bool = False,
) -> None:
    """Enables LMS, or reconfigures it when it is enabled.

    Tensors that exist already keep their memory; LMS manages what is allocated from now on.

    :param device: ``"cpu"``.
    :param limit: bytes that managed tensors may occupy in the device's memory, at least 0. It is passed only while
        everything resident is in use; by how much is in :func:`stats`.
    :param min_size: bytes from which on a tensor is managed, at least 1; smaller ones use the stock allocator.
    :param store: an existing directory in which a file holds what is paged out, or None to hold it in host memory. On
        ``"cpu"`` that is the same memory, so a store in a directory is what makes room there.
    :param policy: ``"iteration"`` learns one training iteration, then evicts what is needed last and prefetches what is
        needed next; ``"lru"`` evicts what was used least recently.
    :param strict: an operation that needs more than ``limit`` raises :class:`torch.OutOfMemoryError`.
    :raises OSError: the store cannot be created in that directory.
    :raises RuntimeError: this build of PyTorch has no LMS, or the machine cannot provide the address space.
    """
    global _pager, _known_pager
    _check_device(device)
    if not isinstance(strict, bool):
        raise TypeError(f"strict: expected a bool, got {type(strict).__name__}")
    options = _library.Options(
        struct_size=ctypes.sizeof(_library.Options),
        limit=_check_bytes("limit", limit, 0),
        store=_check_store(store),
        policy=_check_policy(policy),
        strict=strict,
        address_space=0,
    )
    min_size = _check_bytes("min_size", min_size, 1)
    library = _library.load()
    from . import _handout

    with _lock:
        _library.check(library.lms_torch_cpu_enable(ctypes.byref(options), min_size))
        _pager = library.lms_torch_cpu_pager()
        _handout.install(_pager)
        if _known_pager is None:
            _known_pager = _pager
            # The background worker must not outlive the interpreter; blocks stay readable.
            atexit.register(library.lms_shutdown, _pager)


def disable(device: str | torch.device) -> None:
    """Brings everything back and lets new tensors use the stock allocator; does nothing when LMS is not enabled.

    Tensors that LMS managed stay where they are, resident, until they are freed.

    :raises torch.OutOfMemoryError, OSError: something could not be brought back; LMS stays enabled.
    """
    global _pager
    _check_device(device)
    with _lock:
        if _pager is None:
            return
        from . import _handout

        _library.check(_library.load().lms_torch_cpu_disable())
        _handout.remove()
        _pager = None


def is_enabled(device: str | torch.device) -> bool:
    """Whether LMS is enabled for ``device``; False for a device that cannot use it."""
    return _device_type(device) == "cpu" and _pager is not None


def limit(device: str | torch.device) -> int:
    """The limit in bytes.

    :raises RuntimeError: LMS is not enabled.
    """
    return _library.load().lms_limit(_enabled_pager(device))


def set_limit(device: str | torch.device, nbytes: int) -> None:
    """Changes the limit, and pages out until what is resident fits or nothing more can leave.

    :param nbytes: the new limit in bytes, at least 0.
    :raises OSError: the store could not be written; what was to leave is still resident.
    :raises RuntimeError: LMS is not enabled.
    """
    nbytes = _check_bytes("nbytes", nbytes, 0)
    _library.check(_library.load().lms_set_limit(_enabled_pager(device), nbytes))


def reclaim(device: str | torch.device, nbytes: int | None = None) -> int:
    """Pages out inactive tensors now.

    :param nbytes: stop when this many bytes have left; None pages out everything that can leave.
    :returns: the bytes that left.
    :raises OSError: the store could not be written; the tensors are intact.
    :raises RuntimeError: LMS is not enabled.
    """
    nbytes = _UINT64_MAX if nbytes is None else _check_bytes("nbytes", nbytes, 0)
    reclaimed = ctypes.c_uint64()
    _library.check(_library.load().lms_reclaim(_enabled_pager(device), nbytes, ctypes.byref(reclaimed)))
    return reclaimed.value


def stats(device: str | torch.device) -> dict[str, int]:
    """The pager's statistics by name; all zero before the first :func:`enable`. docs/statistics.md explains each."""
    _check_device(device)
    library = _library.load()
    names: list[str] = []
    while (name := library.lms_statistic_name(len(names))) is not None:
        names.append(name.decode())
    values = (ctypes.c_uint64 * len(names))()
    if _known_pager is not None:
        library.lms_statistics(_known_pager, values, len(names))
    return dict(zip(names, values, strict=True))


def reset_peak_stats(device: str | torch.device) -> None:
    """Sets every ``*.peak`` of :func:`stats` to its current value."""
    _check_device(device)
    if _known_pager is not None:
        _library.load().lms_reset_peaks(_known_pager)


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
    _library.check(_library.load().lms_trace_stop(_enabled_pager(device)))


class pin:
    """Keeps tensors resident while the ``with`` block runs: for code that takes raw pointers.

    ``with torch.lms.pin(*tensors): ...`` brings the tensors in, and none of them is paged out before the block ends.
    They count as written. What is pinned counts against the limit. Does nothing where LMS does not manage a tensor.
    Inside a compiled function it does nothing either: a compiled graph's inputs are pinned as it is called.

    :raises torch.OutOfMemoryError: they do not fit under the limit, and LMS is strict.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"tensors[{index}]: expected a torch.Tensor, got {type(tensor).__name__}")
        self._tensors = tensors
        self._tokens: list[list[int]] = []  # a stack, since one object may be entered more than once

    def __enter__(self) -> Self:
        if not torch.compiler.is_dynamo_compiling():
            tokens = torch.ops.lms.pin(list(self._tensors), True) if _known_pager is not None else []
            self._tokens.append(tokens)
        return self

    def __exit__(self, *exception: object) -> None:
        if not torch.compiler.is_dynamo_compiling() and (tokens := self._tokens.pop()):
            torch.ops.lms.unpin(tokens)


def pinned_call(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Decorates the method that runs a compiled graph, whose kernels bypass the dispatcher.

    The tensors among its inputs are pinned from start to end, what it allocates is protected until the end, and what
    it returns may be paged out from then on. A pin is no reference: the graph may free an input early.
    """

    @functools.wraps(call)
    def call_pinned(self: Any, inputs: Any) -> Any:
        pager = _pager
        if pager is None:
            return call(self, inputs)
        library = _library.load()
        tokens = _pin_all(inputs)
        library.lms_scope_begin(pager)
        try:
            outputs = call(self, inputs)
            # No operation has seen the outputs, and only what was seen may be paged out: a pin counts.
            torch.ops.lms.unpin(_pin_all(outputs))
            return outputs
        finally:
            library.lms_scope_end(pager)
            torch.ops.lms.unpin(tokens)

    return call_pinned


def _pin_all(values: Any) -> list[int]:
    tensors = (
        [value for value in values if isinstance(value, torch.Tensor)] if isinstance(values, (list, tuple)) else []
    )
    with torch._C._DisableTorchDispatch():  # no dispatch mode must see an operator that the program did not call
        return torch.ops.lms.pin(tensors, True)
