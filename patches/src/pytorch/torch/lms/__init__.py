"""Large Model Support: train models that are larger than the memory they run in.

While LMS is enabled for a device, every tensor of at least ``min_size`` bytes lives in a block that the pager manages.
When the blocks together need more than ``limit`` bytes, the pager copies inactive ones to a store (host memory, or a
file) and gives their memory to others; before an operation uses a block, it is back at the same address. Results are
those of the run without LMS, to the bit where PyTorch itself is deterministic.

Every size is in bytes; where one is given, text such as "8GiB" means the same. Every function may be called from any
thread, at any time, with live tensors around. A wrong argument raises :class:`TypeError` or :class:`ValueError` that
names it. Devices: ``"cpu"``, and in a build with CUDA ``"cuda:0"``, ``"cuda:1"`` and so on, each with a limit of its
own; ``"cuda"`` is the current one.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

from . import _arguments, _devices, _library
from ._calls import (
    limit,
    over_limit_operation,
    reclaim,
    reset_peak_stats,
    set_limit,
    stats,
    trace_start,
    trace_stop,
)
from ._calls import (
    shut_down_at_exit as _shut_down_at_exit,
)
from ._kind import Device
from ._share import Share

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from ._arguments import Store
    from ._sizes import Size

__all__ = [
    "Share",
    "disable",
    "enable",
    "is_enabled",
    "limit",
    "over_limit_operation",
    "pin",
    "reclaim",
    "reset_peak_stats",
    "set_limit",
    "stats",
    "trace_start",
    "trace_stop",
]

_lock = threading.RLock()  # serialises enable and disable
_active = False  # whether LMS is enabled for any device
# The options, and the min_size, with which a CUDA device is enabled when it is first asked for that much memory; None:
# it is not. Says nothing about devices that were enabled before.
_at_first_use: tuple[_library.Options, int] | None = None


def _is_known(device: torch.device) -> bool:
    """Whether LMS was ever enabled for the device."""
    return _library.pager(_devices.find(device)) is not None


def _waits(device: Device) -> bool:
    """Whether the device is going to be enabled when it is first used."""
    return _at_first_use is not None and device.kind.name == "cuda" and _library.pager(device) is None


def _no_longer_wait(device: Device) -> None:
    with _lock:
        if _waits(device):
            options, min_size = _at_first_use
            _library.check(_library.call(device, "enable", ctypes.byref(options), min_size))


def _before_observing() -> None:
    """Other threads may make calls that no observer can be shown, from the moment when one is in place."""
    from . import _unsigned

    if _unsigned.rows():
        _unsigned.repeat_calls(True)


def _switched() -> None:
    """Wraps what has to be while LMS is enabled for some device, and nothing else. The caller holds the lock."""
    global _active
    from . import (
        _compilers,
        _extensions,
        _graphs,
        _handout,
        _memory_stats,
        _tensor_lists,
        _unobserved,
        _unsigned,
        _wrapping,
    )

    active = {device.kind.name for device in _library.devices() if _library.enabled(device) or _waits(device)}
    _unsigned.repeat_calls(bool(active))
    rows = _handout.ROWS + _memory_stats.ROWS + _tensor_lists.ROWS + _compilers.ROWS + _unobserved.rows()
    rows += _extensions.ROWS + _unsigned.rows()
    _extensions.wrap_all("cuda" in active)
    _wrapping.apply({row for row in rows if active.intersection(row.devices)})
    _active = bool(active)
    if not _active:
        _graphs.put_back()


def enable(
    device: str | torch.device,
    *,
    limit: Size | None = None,
    min_size: Size | None = None,
    store: Store | None = None,
    policy: str = "iteration",
    strict: bool = False,
    share: bool | str | Share = False,
    checksum: bool = True,
) -> None:
    """Enables LMS, or reconfigures it when it is enabled.

    Tensors that exist already keep their memory; LMS manages what is allocated from now on.

    :param device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    :param limit: what managed tensors may occupy in the device's memory: bytes, at least 0; text such as "8GiB", "512
        MiB", "1.5GB" or "50%"; or a float such as 0.5, that part of the device's memory, or on ``"cpu"`` of the RAM
        that the process may use. It is passed only while everything resident is in use; by how much is in
        :func:`stats`. ``"auto"``: on ``"cpu"`` what the machine and the process's control groups (a container) leave
        of their RAM, less 5 % or 64 MiB, as it changes; on CUDA the same as None. None, which is for CUDA: what is free
        on the device now, less 5 % for everything that is no managed tensor.
    :param min_size: bytes, or text, from which on a tensor is managed, at least 1; smaller ones use the stock
        allocator. None is 64 KiB on ``"cpu"`` and 1 MiB on CUDA.
    :param store: an existing directory in which files hold what is paged out, or several in a list, on different disks,
        that are used at once; or None to hold it in host memory. On ``"cpu"`` that is the same memory, so a store in a
        directory is what makes room there, and with the limit ``"auto"`` None is ``$TMPDIR``, ``/var/tmp``, ``/tmp`` or
        the current one, the first that is on a disk.
    :param policy: what is paged out first, and brought back early. ``"iteration"`` learns one training iteration, then
        pages out what is needed last and prefetches what is needed next; an unknown name raises a ValueError that
        lists all of them.
    :param strict: what needs more than ``limit`` raises :class:`torch.cuda.OutOfMemoryError`: on ``"cpu"`` every operation, on
        CUDA every allocation. There, bringing an operation's inputs back passes the limit, as without ``strict``: an
        operation cannot be stopped any more, and without its inputs it would fail on the device.
    :param share: the limit is a budget that this process shares with others, each of which has what the others do not
        need: True for all that use the device, a name for those that give the same one, or a :class:`Share` with a
        weight, a guaranteed minimum or a priority. All have to give the same ``limit``; on CUDA without one the budget
        is what the device has, as it changes. docs/sharing.md says who gets how much.
    :param checksum: what comes back from files has to be what was written there, or is an error of who needs it. False
        saves the time that this takes: about a tenth of a nanosecond for each byte, each way.
    :raises ValueError: there is no such device, or it has less memory than ``limit``.
    :raises OSError: the store cannot be created in that directory, or processes cannot share through theirs.
    :raises RuntimeError: this build of PyTorch has no LMS; the machine cannot provide the address space; the driver or
        the device cannot manage virtual memory; or CUDA memory comes from another allocator than PyTorch's own.
    """
    _enable(device, limit, min_size, store, policy, strict, share=share, checksum=checksum)


def _enable(
    device: str | torch.device,
    limit: Size | None = None,
    min_size: Size | None = None,
    store: Store | None = None,
    policy: str = "iteration",
    strict: bool = False,
    limit_kind: int = _library.LIMIT_MANAGED,
    share: bool | str | Share = False,
    checksum: bool = True,
) -> None:
    """:func:`enable` with any kind of limit that the pager has."""
    found = _devices.find(device)
    options = _arguments.check_options(found, limit, store, policy, strict, limit_kind, share, checksum)
    least = _arguments.check_min_size(min_size, found, options.limit)
    found.kind.prepare(found.index)  # without the lock: to start CUDA may run what set_enabled_lms left for that time
    with _lock:
        if options.limit != _arguments.UINT64_MAX and limit_kind == _library.LIMIT_MANAGED:
            _arguments.check_capacity("limit", options.limit, found)
        if found.kind.name == "cpu" and not _library.enabled(found):
            from . import _handout

            _handout.warn_of_rpc()
        _before_observing()
        _library.check(_library.call(found, "enable", ctypes.byref(options), least))
        _shut_down_at_exit()
        _switched()


def _enable_at_first_use(
    limit: Size | None = None,
    min_size: Size | None = None,
    store: Store | None = None,
    policy: str = "iteration",
    strict: bool = False,
    limit_kind: int = _library.LIMIT_MANAGED,
    share: bool | str | Share = False,
    checksum: bool = True,
) -> None:
    """Enables every CUDA device that has never been enabled as soon as it is asked for a tensor of ``min_size`` bytes.

    Until then a device that the process sees but does not use gets neither a context nor a pager. The arguments are
    those of :func:`_enable`; None as the limit is what is free on the device at that time, less 5 %, and 0.5 half of the
    first device's memory.
    """
    global _at_first_use
    first, every = Device(_devices.KINDS["cuda"], 0), Device(_devices.KINDS["cuda"], -1)
    options = _arguments.check_options(first, limit, store, policy, strict, limit_kind, share, checksum)
    least = _arguments.check_min_size(min_size, first, options.limit)
    bounded = options.limit != _arguments.UINT64_MAX and limit_kind == _library.LIMIT_MANAGED
    with _lock:
        for index in range(torch.cuda.device_count()) if bounded else ():
            _arguments.check_capacity("limit", options.limit, Device(first.kind, index))
        _before_observing()
        _library.check(_library.call(every, "enable", ctypes.byref(options), least))
        _at_first_use = (options, least)
        _shut_down_at_exit()
        _switched()


def _disable_at_first_use() -> None:
    """Ends what :func:`_enable_at_first_use` began, for the devices that were not used since."""
    global _at_first_use
    with _lock:
        if _at_first_use is not None:
            _at_first_use = None
            _library.check(_library.call(Device(_devices.KINDS["cuda"], -1), "disable"))
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


def _never() -> bool:
    return False


# Whether a compiler traces the caller. Releases that cannot say it do not trace what asks for it either.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", _never)


class pin:
    """Keeps tensors resident while the ``with`` block runs: for code that takes raw pointers.

    ``with torch.lms.pin(*tensors): ...`` brings the tensors in, and none of them is paged out before the block ends.
    They count as written. What is pinned counts against the limit. Does nothing where LMS does not manage a tensor.
    Inside a compiled function it does nothing either: a compiled graph's inputs are pinned as it is called.

    On CUDA the tensors are there for work on any stream of their device, and what was enqueued there before the block
    ends finds them: the memory is not taken away before that work is done. For work on a stream of another device, call
    ``tensor.record_stream(stream)`` before the block ends.

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
            tokens: list[int] = []
            if _library.is_loaded():
                from . import _handout

                tokens = _handout.pin(list(self._tensors), False)
            self._tokens.append(tokens)
        return self

    def __exit__(self, *exception: object) -> None:
        if not _is_compiling():
            tokens = self._tokens.pop()
            if tokens:
                from . import _handout

                _handout.unpin(tokens, False)


def pinned_call(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Decorates the method that runs a compiled graph, whose kernels bypass the dispatcher.

    Each kernel pins what it is given. Where they cannot be made to, the tensors among the graph's inputs are pinned from
    start to end, what it allocates is protected until the end, and what it returns may be paged out from then on.
    """

    @functools.wraps(call)
    def call_pinned(self: Any, inputs: Any) -> Any:
        if not _active:
            return call(self, inputs)
        from . import _graphs

        return _graphs.call_graph(call, self, inputs)

    return call_pinned
