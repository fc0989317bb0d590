"""Large Model Support: train models that are larger than the memory they run in.

While LMS is enabled for a device, every tensor of at least ``min_size`` bytes lives in a block that the pager manages.
When the blocks together need more than ``limit`` bytes, the pager copies inactive ones to a store (host memory, or a
file) and gives their memory to others; before an operation uses a block, it is back at the same address. Results are
those of the run without LMS, to the bit where TensorFlow itself is deterministic.

Every size is in bytes; where one is given, text such as "8GiB" means the same. Every function may be called from any
thread, at any time, with live tensors around, before devices exist or after. A wrong argument raises :class:`TypeError`
or :class:`ValueError` that names it. Devices: ``"cpu"``, and in a build with CUDA ``"gpu:0"``, ``"gpu:1"`` and so on,
each with a limit of its own. A GPU's number is that of ``tf.config.list_physical_devices("GPU")``, whatever is visible
or divided, and not that of a logical device: ``"/device:GPU:0"`` is a :class:`ValueError`. All CPU devices of a process
are one memory with one limit.

``tf.config.experimental.set_lms_enabled(True)`` is about all devices at once, and has less to say.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

from . import _arguments, _devices, _handout, _library, _once
from ._calls import (
    limit,
    over_limit_operation,
    reclaim,
    reset_peak_stats,
    set_limit,
    shut_down_at_exit,
    stats,
    trace_start,
    trace_stop,
)
from ._kind import Device
from ._share import Share

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name == "callbacks":  # imports Keras
        return importlib.import_module(f"{__name__}.callbacks")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _switched() -> None:
    """Wraps what has to be while LMS is enabled for some device, or is going to be, and nothing else."""
    with _lock:
        reason = _library.load().lms_tensorflow_without_effect()
        if reason is not None:
            _once.warn(f"LMS was asked for, and has no effect: {reason.decode()}")
        active = _library.load().lms_tensorflow_enabled() == 1 or any(map(_library.enabled, _library.devices()))
        _handout.watch(active)
        if active:
            shut_down_at_exit()


def enable(
    device: _devices.AnyDevice,
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

    A GPU gets its devices with the first operation. Before that only the arguments are looked at; what the GPU, its
    driver or the store's directory cannot do is then an error of that operation, a :class:`tf.errors.OpError`.

    :param device: ``"cpu"``, ``"gpu"``, which is the first one, or ``"gpu:N"``.
    :param limit: what managed tensors may occupy in the device's memory: bytes, at least 0; text such as "8GiB", "512
        MiB", "1.5GB" or "50%"; or a float such as 0.5, that part of the device's memory, or on ``"cpu"`` of the RAM
        that the process may use. It is passed only while everything resident is in use; by how much is in
        :func:`stats`. ``"auto"``: on ``"cpu"`` what the machine and the process's control groups (a container) leave
        of their RAM, less 5 % or 64 MiB, as it changes; on a GPU the same as None. None, which is for GPUs: what is
        free on the GPU when it gets its devices, less 5 %.
    :param min_size: bytes, or text, from which on a tensor is managed, at least 1; smaller ones use the stock
        allocator. None is 64 KiB on ``"cpu"`` and 1 MiB on a GPU.
    :param store: an existing directory in which files hold what is paged out, or several in a list, on different disks,
        that are used at once; or None to hold it in host memory. On ``"cpu"`` that is the same memory, so a store in a
        directory is what makes room there, and with the limit ``"auto"`` None is ``$TMPDIR``, ``/var/tmp``, ``/tmp`` or
        the current one, the first that is on a disk.
    :param policy: what is paged out first, and brought back early. ``"iteration"`` learns one training iteration, then
        pages out what is needed last and prefetches what is needed next; an unknown name raises a ValueError that
        lists all of them.
    :param strict: what needs more than ``limit`` raises :class:`tf.errors.ResourceExhaustedError`: on ``"cpu"`` every
        operation, on a GPU every allocation.
    :param share: the limit is a budget that this process shares with others, each of which has what the others do not
        need: True for all that use the device, a name for those that give the same one, or a :class:`Share` with a
        weight, a guaranteed minimum or a priority. All have to give the same ``limit``; on a GPU without one the budget
        is what the device has, as it changes. docs/sharing.md says who gets how much.
    :param checksum: what comes back from files has to be what was written there, or is an error of who needs it. False
        saves the time that this takes: about a tenth of a nanosecond for each byte, each way.
    :raises ValueError: there is no such device, or it has less memory than ``limit``.
    :raises OSError: the store cannot be created in that directory, or processes cannot share through theirs.
    :raises RuntimeError: this build of TensorFlow has no LMS; the machine cannot provide the address space; or the
        driver or the device cannot manage virtual memory.
    """
    found = _devices.find(device)
    options = _arguments.check_options(found, limit, store, policy, strict, share=share, checksum=checksum)
    least = _arguments.check_min_size(min_size, found, options.limit)
    found.kind.prepare(found.index)
    with _lock:
        _library.check(_library.call(found, "enable", ctypes.byref(options), least))
        _switched()


def disable(device: _devices.AnyDevice) -> None:
    """Brings everything back and lets new tensors use the stock allocator; does nothing when LMS is not enabled.

    Tensors that LMS managed stay where they are, resident, until they are freed.

    :raises tf.errors.ResourceExhaustedError: the device has too little memory for everything; LMS stays enabled.
    :raises OSError, RuntimeError: the store could not be read, or the device has failed; LMS stays enabled.
    """
    found = _devices.find(device)
    with _lock:
        if _library.enabled(found):
            _library.check(_library.call(found, "disable"))
            _switched()


def is_enabled(device: _devices.AnyDevice) -> bool:
    """Whether LMS is enabled for ``device``; False for a device that cannot use it."""
    name, index = _devices.parse(device)
    kind = _devices.KINDS.get(name)
    return kind is not None and kind.in_this_build() and _library.enabled(Device(kind, kind.index(index)))


class pin:
    """Keeps tensors resident while the ``with`` block runs: for code that takes raw pointers.

    ``with tf.lms.pin(*tensors): ...`` brings tensors and variables in, and none of them is paged out before the block
    ends. They count as written. What is pinned counts against the limit. Does nothing where LMS does not manage a
    tensor, nor for the symbolic tensors of a graph, which have no memory yet.

    What is pinned of a variable is the memory that it has when the block begins.

    :raises tf.errors.ResourceExhaustedError: the device has no room for them, or a strict limit on ``"cpu"`` has none.
    """

    def __init__(self, *tensors: Any) -> None:
        for index, tensor in enumerate(tensors):
            if not _handout.is_tensor(tensor):
                raise TypeError(f"tensors[{index}]: expected a tf.Tensor or tf.Variable, got {type(tensor).__name__}")
        self._tensors = tensors
        self._pins: list[_handout.Pins] = []  # a stack, since one object may be entered more than once

    def __enter__(self) -> Self:
        self._pins.append(_handout.Pins(self._tensors))
        return self

    def __exit__(self, *exception: object) -> None:
        self._pins.pop().end()


for _kind in _devices.KINDS.values():
    if _kind.in_this_build():
        _library.load(_kind.name)  # registers devices that can page, which has to be done before TensorFlow makes any
_handout.watch_sessions(_switched)
if not {"TF_LMS_ENABLED", "TF_LMS_LIMIT", "TF_LMS_SHARE"}.isdisjoint(os.environ):
    importlib.import_module(f"{__name__}._environment").switch_on()
