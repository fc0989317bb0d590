"""The native libraries: found, loaded once, their C functions declared, their failures raised.

A library is loaded when the first function that needs it is called, and not before. What differs between frameworks is
in ``_devices``.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

from . import _devices
from ._kind import Device, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_MANAGED, LIMIT_TOTAL, LIMIT_LEAST, LIMIT_AUTO = range(4)  # lms_limit_kind of limit_kind.h

_OK, _INVALID_ARGUMENT, _OUT_OF_MEMORY, _STORE_FAILED, _UNSUPPORTED, _DEVICE_FAILED, _READ_FAILED = range(7)


class Options(ctypes.Structure):
    """``lms_options`` of lms.h. Sizes are in bytes."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("limit", ctypes.c_uint64),
        ("store", ctypes.c_char_p),
        ("policy", ctypes.c_char_p),
        ("strict", ctypes.c_int),
        ("address_space", ctypes.c_uint64),
        ("limit_kind", ctypes.c_int),
        ("share", ctypes.c_char_p),
        ("unchecked", ctypes.c_int),
    ]


class PinToken(ctypes.Structure):
    """``lms_pin_token`` of lms.h."""

    _fields_ = [("block", ctypes.c_void_p), ("generation", ctypes.c_uint64)]


_HANDLE = ctypes.c_void_p

# What each kind of device has for itself, as <prefix><kind>_<name>. The kind's arguments come first.
_OF_A_KIND: dict[str, tuple[Any, list[Any]]] = {
    "enable": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.c_uint64]),
    "disable": (ctypes.c_int, []),
    "enabled": (ctypes.c_int, []),
    "min_size": (ctypes.c_uint64, []),  # bytes
    "pager": (_HANDLE, []),  # null before the first use; its blocks outlive disable
}

# What serves the pagers of all devices. The CPU's library, the first that is loaded, has it.
_OF_ALL: dict[str, tuple[Any, list[Any]]] = {
    "lms_shutdown": (None, [_HANDLE]),
    "lms_set_limit": (ctypes.c_int, [_HANDLE, ctypes.c_uint64]),
    "lms_limit": (ctypes.c_uint64, [_HANDLE]),
    "lms_owner": (_HANDLE, [ctypes.c_void_p]),
    "lms_pin": (ctypes.c_int, [_HANDLE, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(PinToken)]),
    "lms_unpin": (None, [_HANDLE, PinToken]),
    "lms_scope_begin": (None, [_HANDLE]),
    "lms_scope_end": (None, [_HANDLE]),
    "lms_reclaim": (ctypes.c_int, [_HANDLE, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]),
    "lms_policy_name": (ctypes.c_char_p, [ctypes.c_size_t]),
    "lms_statistic_name": (ctypes.c_char_p, [ctypes.c_size_t]),
    "lms_statistics": (ctypes.c_size_t, [_HANDLE, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]),
    "lms_reset_peaks": (None, [_HANDLE]),
    "lms_over_limit_operation": (ctypes.c_size_t, [_HANDLE, ctypes.c_char_p, ctypes.c_size_t]),
    "lms_trace_start": (ctypes.c_int, [_HANDLE, ctypes.c_char_p]),
    "lms_trace_stop": (ctypes.c_int, [_HANDLE]),
    "lms_last_error": (ctypes.c_char_p, []),
}

_lock = threading.Lock()
_loaded: dict[str, ctypes.CDLL] = {}


def load(kind: str = "cpu") -> ctypes.CDLL:
    """Returns the library of a kind of device, loading it on the first call. Thread-safe.

    :raises RuntimeError: this build of the framework has no LMS for that kind.
    """
    library = _loaded.get(kind)
    if library is None:
        with _lock:
            for name in ("cpu", kind):  # the others build upon the CPU's
                if name not in _loaded:
                    _loaded[name] = _find(_devices.KINDS[name])
        library = _loaded[kind]
    return library


def _find(kind: Kind) -> ctypes.CDLL:
    prefix = f"{_devices.PREFIX}{kind.name}_"
    for name in kind.libraries:
        path = os.path.join(_devices.FOLDER, name)
        if not os.path.exists(path):
            continue
        library = ctypes.CDLL(path)
        if hasattr(library, f"{prefix}enable"):
            index = [ctypes.c_int] * len(kind.arguments(0))
            for function, (result, arguments) in _OF_A_KIND.items():
                declared = getattr(library, prefix + function)
                declared.restype, declared.argtypes = result, index + arguments
            if not _loaded:
                for function, (result, arguments) in {**_OF_ALL, **_devices.FUNCTIONS}.items():
                    declared = getattr(library, function)
                    declared.restype, declared.argtypes = result, arguments
            return library
    raise RuntimeError(
        f"this build of {_devices.FRAMEWORK} has no Large Model Support for {kind.name!r}: "
        f"none of {', '.join(kind.libraries)} in {_devices.FOLDER} has it"
    )


def call(device: Device, function: str, *arguments: Any) -> Any:
    """Calls ``<prefix><kind>_<function>`` for a device."""
    native = getattr(load(device.kind.name), f"{_devices.PREFIX}{device.kind.name}_{function}")
    return native(*device.kind.arguments(device.index), *arguments)


def check(status: int) -> None:
    """Raises what a failed C function's ``lms_status`` stands for, with the library's own sentence.

    :raises ValueError: an option is wrong.
    :raises torch.cuda.OutOfMemoryError, tf.errors.ResourceExhaustedError: no memory under the limit (strict), in the
        address space, or on the machine.
    :raises OSError: the host store could not be created, written or read.
    :raises RuntimeError: this machine, or this state, cannot do that; or the device has failed.
    """
    if status == _OK:
        return
    message = load().lms_last_error().decode(errors="replace") or f"LMS failed with status {status}"
    if status == _INVALID_ARGUMENT:
        raise ValueError(message)
    if status == _OUT_OF_MEMORY:
        raise _devices.out_of_memory(message)
    if status in (_STORE_FAILED, _READ_FAILED):
        raise OSError(message)
    raise RuntimeError(message)


def _names(name_of: Callable[[int], Any]) -> list[str]:
    """What a C function gives for 0, 1 and so on, until it gives NULL."""
    found = itertools.takewhile(lambda name: name is not None, map(name_of, itertools.count()))
    return [name.decode() for name in found]


def policies() -> list[str]:
    """The names of the pager's policies."""
    return _names(load().lms_policy_name)


def statistic_names() -> list[str]:
    """The names of the pager's statistics."""
    return _names(load().lms_statistic_name)


def statistics(device: Device) -> dict[str, int]:
    """Every statistic of the device's pager by name; all zero while it has none."""
    library, names = load(), statistic_names()
    values = (ctypes.c_uint64 * len(names))()
    handle = pager(device)
    if handle is not None:
        library.lms_statistics(handle, values, len(names))
    return {name: values[index] for index, name in enumerate(names)}


def reset_peaks(device: Device) -> None:
    """Sets every peak of the device's pager, if it has one, to its current value."""
    handle = pager(device)
    if handle is not None:
        load().lms_reset_peaks(handle)


def over_limit_operation(device: Device) -> str:
    """The operation that needed most over the limit; empty when there is none, or it is not known."""
    library, handle = load(), pager(device)
    text = ctypes.create_string_buffer(256)
    if handle is not None:
        library.lms_over_limit_operation(handle, text, len(text))
    return text.value.decode(errors="replace")


def is_loaded() -> bool:
    """Whether any library is loaded, which is when LMS was enabled or asked for its statistics for the first time."""
    return bool(_loaded)


def enabled(device: Device) -> bool:
    """Whether LMS is enabled for the device."""
    return device.kind.name in _loaded and bool(call(device, "enabled"))


def pager(device: Device) -> int | None:
    """The device's pager, from its first use on."""
    return call(device, "pager") if device.kind.name in _loaded else None


def devices() -> list[Device]:
    """The devices of every kind that has been used."""
    kinds = [_devices.KINDS[name] for name in tuple(_loaded)]
    return [Device(kind, index) for kind in kinds for index in range(kind.count())]


def pagers() -> list[int]:
    """The pagers of all devices."""
    return [handle for handle in map(pager, devices()) if handle is not None]


def owner(address: int) -> int | None:
    """The pager whose block contains ``address``, or None."""
    handle: int | None = load().lms_owner(address)
    return handle


def pin(pager: int, address: int, write: bool) -> PinToken | None:
    """Keeps the block that contains ``address`` resident until :func:`unpin`; None when the pager has no such block."""
    token = PinToken()
    check(load().lms_pin(pager, address, write, ctypes.byref(token)))
    return token if token.block else None


def unpin(pager: int, token: PinToken) -> None:
    """Ends what :func:`pin` began, once; also after the block was freed."""
    load().lms_unpin(pager, token)


@contextlib.contextmanager
def resident(address: int) -> Iterator[None]:
    """Keeps the block that contains ``address`` resident; does nothing when the address is not LMS's."""
    pager = owner(address)
    token = None if pager is None else pin(pager, address, True)
    try:
        yield
    finally:
        if token is not None:
            unpin(pager, token)
