"""The driver's virtual memory management through its C interface, as the pager calls it.

The values and the order of fields are those of patches/src/pager/backend/cuda/cuda_driver.h. A call through ctypes costs
about one microsecond.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable

MIB = 1 << 20
NOT_READY = 600
_INVALID_VALUE, _NOT_PERMITTED, _NOT_SUPPORTED = 1, 800, 801
_HAS_POSIX_FILE_HANDLES = 103  # device attribute
_PINNED, _DEVICE, _READ_WRITE, _POSIX_FILE = 1, 1, 3, 1
_PATIENCE = 2.0  # seconds that a call may answer "not ready"

Size, Address, Handle = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64
_no_flags = ctypes.c_uint64(0)


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


_driver = ctypes.CDLL("libcuda.so.1")


def answer_of(name: str, *arguments: object) -> int:
    """What a function of the driver returns."""
    result: int = getattr(_driver, name)(*arguments)
    return result


def call(name: str, *arguments: object) -> None:
    """Calls a function of the driver. Raises RuntimeError with CUDA's own name of the error."""
    _check(name, answer_of(name, *arguments))


def _check(name: str, result: int) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver.cuGetErrorName(result, ctypes.byref(text))
        raise RuntimeError(f"{name} failed: {(text.value or b'unknown error').decode()} ({result})")


def use_device() -> int:
    """Makes the first device's primary context, which is also torch's, this thread's. Returns the device."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    return device.value


def reserve(nbytes: int, alignment: int) -> int:
    """Addresses without memory."""
    base = Address()
    call("cuMemAddressReserve", ctypes.byref(base), Size(nbytes), Size(alignment), Address(0), _no_flags)
    return base.value


class Memory:
    """Creates, maps and releases physical memory of a device. Counts the answers after which the pager asks again.

    One thread at a time.
    """

    def __init__(self, device: int) -> None:
        self.refused: Counter[str] = Counter()  # by function
        self.calls: Counter[str] = Counter()
        self._device = device
        place = Location(_DEVICE, device)
        self._access = Access(place, _READ_WRITE)
        self._properties = Properties(type=_PINNED, location=place)
        self._properties.handle_types = _POSIX_FILE if self._has(_HAS_POSIX_FILE_HANDLES) else 0

    @property
    def flags(self) -> dict[str, bool]:
        """What memory is created with; without it where the driver has refused it."""
        return {"posix_file_handles": bool(self._properties.handle_types)}

    def create(self, handle: Handle, nbytes: int) -> None:
        result = self._create(handle, nbytes)
        if result in (_NOT_PERMITTED, _NOT_SUPPORTED, _INVALID_VALUE) and any(self.flags.values()):
            # As the pager does: a driver may know of a feature and yet refuse it, in a container for instance.
            self._properties.handle_types = 0
            result = self._create(handle, nbytes)
        _check("cuMemCreate", result)

    def map(self, address: int, nbytes: int, handle: Handle) -> None:
        self._when_ready("cuMemMap", Address(address), Size(nbytes), Size(0), handle, _no_flags)

    def set_access(self, address: int, nbytes: int) -> None:
        self._when_ready("cuMemSetAccess", Address(address), Size(nbytes), ctypes.byref(self._access), Size(1))

    def unmap(self, address: int, nbytes: int) -> None:
        self._when_ready("cuMemUnmap", Address(address), Size(nbytes))

    def release(self, handle: Handle) -> None:
        call("cuMemRelease", handle)

    def _create(self, handle: Handle, nbytes: int) -> int:
        return answer_of("cuMemCreate", ctypes.byref(handle), Size(nbytes), ctypes.byref(self._properties), _no_flags)

    def _has(self, attribute: int) -> bool:
        value = ctypes.c_int()
        return answer_of("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device) == 0 and value.value != 0

    def _when_ready(self, name: str, *arguments: object) -> None:
        self.calls[name] += 1
        result = answer_of(name, *arguments)
        if result == NOT_READY:
            deadline = time.monotonic() + _PATIENCE
            while result == NOT_READY and time.monotonic() < deadline:
                self.refused[name] += 1
                result = answer_of(name, *arguments)
        _check(name, result)


def timed(work: Callable[[], object]) -> float:
    """Microseconds."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e6
