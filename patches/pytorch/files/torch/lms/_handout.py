"""Memory that PyTorch hands to code which does not go through the dispatcher, kept resident meanwhile.

Such code would work without this, since a fault brings a block back; but a system call that is given the memory of a
block that is away fails with EFAULT instead of faulting. So a view for NumPy or DLPack pins its block while it lives,
and reading or writing a storage from a file pins it during the call.

One table lists what is wrapped. :func:`install` puts the wrappers in place when LMS is enabled, :func:`remove` takes
them out when it is disabled: with LMS off nothing differs from stock.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from . import _library

if TYPE_CHECKING:
    from collections.abc import Callable

    _Wrapper = Callable[[int, Callable[..., Any]], Callable[..., Any]]


def _pinned_alias(pager: int, tensor: torch.Tensor) -> torch.Tensor | None:
    """The same bytes under a storage that holds a pin, or None when they are not LMS's."""
    if not _library.load().lms_owns(pager, tensor.data_ptr()):
        return None
    # A dispatch mode must not see an operator that the program did not call.
    with torch._C._DisableTorchDispatch():
        return torch.ops.lms.pinned_alias(tensor)


def _numpy(pager: int, stock: Callable[..., Any]) -> Callable[..., Any]:
    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        array = stock(self, *args, **kwargs)  # with every check, and every conversion that `force` asks for
        base = getattr(array, "base", None)  # the tensor that owns the array's memory
        alias = _pinned_alias(pager, base) if type(base) is torch.Tensor else None
        return array if alias is None else stock(alias)

    return numpy


def _to_dlpack(pager: int, stock: Callable[..., Any]) -> Callable[..., Any]:
    def to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        exported = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"
        if exported and not tensor.requires_grad:
            if kwargs.get("copy"):
                # The copy, too, is read through a raw pointer.
                kwargs, tensor = {**kwargs, "copy": None}, tensor.clone()
            tensor = tensor if (alias := _pinned_alias(pager, tensor)) is None else alias
        return stock(tensor, *args, **kwargs)

    return to_dlpack


def _storage_method(pager: int, stock: Callable[..., Any]) -> Callable[..., Any]:
    def with_storage_resident(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cpu":
            return stock(self, *args, **kwargs)
        with _library.resident(pager, self.data_ptr()):
            return stock(self, *args, **kwargs)

    return with_storage_resident


def _write_record(pager: int, stock: Callable[..., Any]) -> Callable[..., Any]:
    def write_record(self: Any, name: str, data: Any, size: int) -> Any:
        if isinstance(data, torch.UntypedStorage) and data.device.type == "cpu":
            address = data.data_ptr()
        elif isinstance(data, int):
            address = data
        else:  # str or bytes
            return stock(self, name, data, size)
        with _library.resident(pager, address):
            return stock(self, name, data, size)

    return write_record


_TABLE: tuple[tuple[Any, str, _Wrapper], ...] = (
    (torch.Tensor, "numpy", _numpy),  # also what Tensor.__array__ calls
    (torch._C, "_to_dlpack", _to_dlpack),  # what Tensor.__dlpack__ calls, as is the next
    (torch._C, "_to_dlpack_versioned", _to_dlpack),
    (torch.utils.dlpack, "to_dlpack", _to_dlpack),
    (torch, "to_dlpack", _to_dlpack),
    (torch.UntypedStorage, "_write_file", _storage_method),
    (torch.UntypedStorage, "_set_from_file", _storage_method),
    (torch._C.PyTorchFileWriter, "write_record", _write_record),
)

# What install() replaced: owner, name, the wrapper, and the stock attribute or None where the owner had inherited it.
_installed: list[tuple[Any, str, Any, Any]] = []


def install(pager: int) -> None:
    """Wraps every row of the table, unless it is wrapped. The caller serialises install and remove."""
    if _installed:
        return
    for owner, name, wrapper in _TABLE:
        stock = getattr(owner, name)
        wrapped = functools.wraps(stock)(wrapper(pager, stock))
        _installed.append((owner, name, wrapped, vars(owner).get(name)))
        setattr(owner, name, wrapped)


def remove() -> None:
    """Puts the stock attributes back."""
    while _installed:
        owner, name, wrapped, own = _installed.pop()
        if vars(owner).get(name) is not wrapped:
            continue  # somebody wrapped it once more: ours has to stay below theirs
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
