"""What is PyTorch's own: its devices, one class per kind and one row per kind in the table, its libraries and errors.

Sizes are in bytes. Nothing here starts CUDA except :meth:`prepare`.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import torch

from . import _memory
from ._kind import Device, Kind

if TYPE_CHECKING:
    AnyDevice = str | torch.device

FRAMEWORK = "PyTorch"
PACKAGE = "torch.lms"
PREFIX = "lms_torch_"  # of the C functions
FUNCTIONS = {  # that only PyTorch's library has
    "lms_torch_observes_all": (ctypes.c_int, []),
    "lms_torch_repeat_calls": (ctypes.c_int, [ctypes.c_void_p]),
    "lms_torch_repeat_none": (None, []),
}
FOLDER = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")

# The name under which every release has it that has it at all, from 1.13 on.
out_of_memory = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)


def cuda_is_initialized() -> bool:
    """Whether this process has started CUDA."""
    is_initialized = getattr(torch.cuda, "is_initialized", None)  # from 1.4 on
    return torch.cuda._initialized if is_initialized is None else is_initialized()


class Cpu(Kind):
    """This machine's RAM, as far as it holds tensors."""

    name = "cpu"
    # A graft adds the first one next to PyTorch's own; in a full build one of the others has the same symbols.
    libraries = ("libtorch_lms.so", "libtorch_cpu.so", "libtorch.so")
    min_size = 1 << 16

    def index(self, requested: int | None) -> int:
        return 0  # "cpu:1" is the same memory

    def count(self) -> int:
        return 1

    def prepare(self, index: int) -> None:
        """Is ready."""

    def settle(self, index: int) -> None:
        """Is never put off."""

    def memory(self, index: int) -> int:
        return _memory.usable()


class Cuda(Kind):
    """A CUDA device, by its index among those that the process sees."""

    name = "cuda"
    libraries = ("libtorch_lms_cuda.so", "libtorch_cuda.so", "libtorch_cuda_cpp.so", "libtorch.so")
    min_size = 1 << 20  # what the stock allocator calls a large request
    has_default_limit = True

    def in_this_build(self) -> bool:
        return torch.version.cuda is not None

    def index(self, requested: int | None) -> int:
        if requested is not None:
            return requested
        # To make another device the current one starts CUDA.
        return torch.cuda.current_device() if cuda_is_initialized() else 0

    def count(self) -> int:
        return torch.cuda.device_count()

    def label(self, index: int) -> str:
        return f"cuda:{index}"

    def arguments(self, index: int) -> tuple[int, ...]:
        return (index,)

    def prepare(self, index: int) -> None:
        torch.cuda.init()  # says it when there is no device, no driver, or one that is too old
        if index >= self.count():
            raise ValueError(f"device: 'cuda:{index}' does not exist; this process sees {self.count()} CUDA device(s)")

    def settle(self, index: int) -> None:
        torch.lms._no_longer_wait(Device(self, index))

    def capacity(self, index: int) -> int | None:
        return torch.cuda.get_device_properties(index).total_memory  # gives the device no context

    def memory(self, index: int) -> int:
        self.prepare(index)
        return self.capacity(index)


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Cpu(), Cuda())}


def _meant(device: str) -> str:
    """The end of a sentence about a device that PyTorch does not know."""
    from . import _arguments

    name, colon, index = device.lower().partition(":")
    if name in ("gpu", "nvidia"):  # which other libraries say
        return f"; did you mean {'cuda' + colon + index!r}?"
    return _arguments.did_you_mean(device, [kind + colon + index for kind in KINDS])


def parse(device: str | torch.device) -> tuple[str, int | None]:
    """The type and the index of any device.

    :raises TypeError, ValueError: it is not one.
    """
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device: expected a str or torch.device, such as 'cuda:0', got {type(device).__name__}")
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device: {error}{_meant(device)}") from None
    return parsed.type, parsed.index


def find(device: str | torch.device) -> Device:
    """The device that is meant; ``"cuda"`` is the current one.

    :raises TypeError, ValueError: it is none that this build's LMS can manage.
    """
    name, index = parse(device)
    kind = KINDS.get(name)
    if kind is None or not kind.in_this_build():
        able = [repr(each.name) for each in KINDS.values() if each.in_this_build()]
        raise ValueError(f"device: {str(device)!r} cannot use LMS in this build of PyTorch; {' and '.join(able)} can")
    return Device(kind, kind.index(index))
