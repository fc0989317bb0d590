"""What is TensorFlow's own: its devices, one class per kind and one row per kind in the table, its library and errors.

Sizes are in bytes. Nothing here makes a device except :meth:`settle`.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING

from tensorflow.python.eager import context
from tensorflow.python.framework import config, errors

from . import _memory
from ._kind import Device, Kind

if TYPE_CHECKING:
    AnyDevice = str | context.PhysicalDevice | context.LogicalDevice

FRAMEWORK = "TensorFlow"
PACKAGE = "tf.lms"
PREFIX = "lms_tensorflow_"  # of the C functions
FUNCTIONS = {  # that only TensorFlow's library has
    "lms_tensorflow_set_enabled": (ctypes.c_int, [ctypes.c_int]),
    "lms_tensorflow_enabled": (ctypes.c_int, []),
    "lms_tensorflow_without_effect": (ctypes.c_char_p, []),
    "lms_tensorflow_set_limit": (ctypes.c_int, [ctypes.c_uint64]),
    "lms_tensorflow_set_share": (None, [ctypes.c_char_p]),
    "lms_tensorflow_set_distances": (None, [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]),
    "lms_tensorflow_keep_resident": (None, [ctypes.c_char_p] * 5),
    "lms_tensorflow_pin_dlpack": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "lms_tensorflow_watch_buffers": (ctypes.c_void_p, [ctypes.c_void_p] * 4),
}
FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_LIBRARIES = ("libtensorflow_lms.so", "libtensorflow_framework.so.2")  # the graft's own, or a full build's
_MOST_GPUS = 64  # that the library has room for
# "cpu", "GPU:1", "/physical_device:GPU:1"; with a first group, so a logical device: "/GPU:1", "/device:GPU:1",
# "/job:localhost/replica:0/task:0/device:GPU:1"
_NAME = re.compile(r"(?:/?physical_device:|(.*/(?:device:)?|device:))?([a-z_]+)(?::(\d+))?", re.IGNORECASE)


def out_of_memory(message: str) -> errors.ResourceExhaustedError:
    return errors.ResourceExhaustedError(None, None, message)


class Cpu(Kind):
    """This machine's RAM, as far as it holds the tensors of CPU devices; there may be several, of one memory."""

    name = "cpu"
    libraries = _LIBRARIES
    min_size = 1 << 16

    def index(self, requested: int | None) -> int:
        return 0

    def count(self) -> int:
        return 1

    def prepare(self, index: int) -> None:
        """Is ready."""

    def settle(self, index: int) -> None:
        """Is never put off."""

    def memory(self, index: int) -> int:
        return _memory.usable()


class Gpu(Kind):
    """A GPU, by CUDA's number, which physical devices have: logical ones count what is visible, and its parts."""

    name = "gpu"
    libraries = _LIBRARIES
    min_size = 1 << 20
    has_default_limit = True

    def in_this_build(self) -> bool:
        from . import _library

        return hasattr(_library.load(), f"{PREFIX}gpu_enable")

    def index(self, requested: int | None) -> int:
        return requested or 0

    def count(self) -> int:
        return _MOST_GPUS  # to ask how many there are would start CUDA

    def label(self, index: int) -> str:
        return f"gpu:{index}"

    def arguments(self, index: int) -> tuple[int, ...]:
        return (index,)

    def prepare(self, index: int) -> None:
        found = gpus()
        if index not in found:
            raise ValueError(f"device: 'gpu:{index}' does not exist; TensorFlow sees {len(found)} GPU(s)")

    def settle(self, index: int) -> None:
        from . import _library

        found = Device(self, index)
        if _library.enabled(found) and _library.pager(found) is None:
            context.context().ensure_initialized()  # makes the devices

    def memory(self, index: int) -> int:
        self.prepare(index)  # starts CUDA's driver
        total = ctypes.c_size_t()
        status = ctypes.CDLL("libcuda.so.1").cuDeviceTotalMem_v2(ctypes.byref(total), index)
        if status != 0:
            raise RuntimeError(f"CUDA does not say how much memory GPU {index} has (error {status}): give bytes")
        return total.value


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Cpu(), Gpu())}


def gpus() -> list[int]:
    """The numbers of the GPUs that TensorFlow sees, those included that the program hides from it. Starts CUDA."""
    return [index for _, index in map(parse, config.list_physical_devices("GPU")) if index is not None]


def _match(device: AnyDevice) -> re.Match[str]:
    name = getattr(device, "name", device)
    if not isinstance(name, str):
        raise TypeError(f"device: expected a str or one of TensorFlow's devices, got {type(device).__name__}")
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"device: {name!r} is not a device's name, such as 'cpu' or 'gpu:0'")
    return found


def type_of(device: AnyDevice) -> str:
    """The type of any device, physical or logical, in lower case.

    :raises TypeError, ValueError: it is not one.
    """
    return _match(device)[2].lower()


def parse(device: AnyDevice) -> tuple[str, int | None]:
    """The type, in lower case, and the number of any physical device. All CPU devices are one.

    :raises TypeError, ValueError: it is not one.
    """
    found, name = _match(device), type_of(device)
    if found[1] is not None and name == "gpu":
        raise ValueError(
            f"device: {found[0]!r} is a logical device, whose number need not be its GPU's: say 'gpu:N', with N from "
            "the names that tf.config.list_physical_devices('GPU') gives"
        )
    return name, None if found[3] is None else int(found[3])


def find(device: AnyDevice) -> Device:
    """The device that is meant; ``"gpu"`` is the first one.

    :raises TypeError, ValueError: it is none that this build's LMS can manage.
    """
    name, index = parse(device)
    kind = KINDS.get(name)
    if kind is None or not kind.in_this_build():
        able = [repr(each.name) for each in KINDS.values() if each.in_this_build()]
        raise ValueError(f"device: {device!r} cannot use LMS in this build of TensorFlow; {' and '.join(able)} can")
    return Device(kind, kind.index(index))
