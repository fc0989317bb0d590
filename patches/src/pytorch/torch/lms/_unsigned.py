"""Numbers above 2**63 - 1, which some releases from 2.3 on cannot show to observers.

There every operator that is given such a number, or returns one, fails while an observer asks for inputs and outputs.
The number is turned down before the operator begins, so the call is made again, unobserved, with its tensors pinned.

That is for functions and methods that are called in Python. Operators by their names in ``torch.ops``, and scripts, take
no such numbers.
"""

from __future__ import annotations

import ctypes
import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from . import _library
from ._handout import pinned
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Function = Callable[..., Any]

_REFUSED = "value cannot be converted to type int64_t"


class _Method(ctypes.Structure):
    """PyMethodDef, a row of the tables that Python's builtin functions are made from."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


# METH_VARARGS | METH_KEYWORDS, the same with METH_STATIC, and METH_NOARGS.
_FLAGS = (3, 35, 4)


def _method(function: Any) -> _Method | None:
    """The row that a builtin function or a method's descriptor was made from; None where it cannot be exchanged."""
    if isinstance(function, types.BuiltinFunctionType):
        fields = 0
    elif isinstance(function, types.MethodDescriptorType):
        fields = 3  # of each descriptor: its type, its name, its qualified name
    else:
        return None
    pointer = ctypes.c_void_p.from_address(
        id(function) + object.__basicsize__ + fields * ctypes.sizeof(ctypes.c_void_p)
    )
    method = _Method.from_address(pointer.value)
    return method if method.name == function.__name__.encode() and method.flags in _FLAGS else None


def _functions() -> Iterator[Any]:
    """All that libtorch_python makes operators callable by."""
    names = ("_VariableFunctionsClass", "TensorBase", "_nn", "_special", "_linalg", "_fft", "_sparse", "_nested")
    for owner in (getattr(torch._C, name) for name in names if hasattr(torch._C, name)):
        for name, value in list(vars(owner).items()):
            if name == "__new__":
                continue  # Python's own, and one row for all types
            yield getattr(owner, name) if isinstance(value, staticmethod) else value


def _call_unobserved(call: Callable[[], Any]) -> Any:
    # It was observed, or it would not have failed.
    torch.autograd._enable_record_function(False)
    try:
        return call()
    finally:
        torch.autograd._enable_record_function(True)


def _again(function: Any, self: Any, arguments: Any, keywords: Any) -> Any:
    bound = isinstance(function, types.BuiltinFunctionType)
    args, kwargs = (() if bound else (self,)) + (arguments or ()), keywords or {}
    return pinned(
        lambda: _call_unobserved(lambda: function(*args, **kwargs)), (args, tuple(kwargs.values())), current_stream=True
    )


@functools.lru_cache(None)
def _tables() -> tuple[list[int], list[Any]]:
    """The addresses of the rows, each of them once, and what is called by them."""
    rows = ((_method(function), function) for function in _functions())
    found = {ctypes.addressof(method): function for method, function in rows if method is not None}
    return list(found), list(found.values())


def _shown() -> bool:
    """Whether this release can show such a number to the observer, which is in place."""
    if not hasattr(torch, "uint64"):
        return True
    try:
        torch.full((), 2**64 - 1, dtype=torch.uint64)
    except RuntimeError:
        return False
    return True


_needed: bool | None = None


def repeat_calls(active: bool) -> None:
    """Has calls made again that are turned down, while LMS is active: the observer is in place then.

    :raises RuntimeError: this is not possible with this build of PyTorch.
    """
    global _needed
    if active and _needed is None:
        _needed = not _shown()
    if not _needed:
        return
    if not active:
        _library.load().lms_torch_repeat_none()
        return
    addresses, functions = _tables()
    pointers = ctypes.c_void_p * len(addresses)
    _library.check(
        _library.load().lms_torch_repeat_calls(
            len(addresses), pointers(*addresses), pointers(*map(id, functions)), _REFUSED.encode(), _again, None
        )
    )


def _fills(stock: _Function) -> _Function:
    """What grows a tensor and then, if told to, fills the new part with such a number: that cannot be done twice."""

    def fills(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.dtype is not torch.uint64 or not torch.are_deterministic_algorithms_enabled():
            return stock(self, *args, **kwargs)
        return pinned(lambda: _call_unobserved(lambda: stock(self, *args, **kwargs)), ((self, *args),), True)

    return fills


_ROWS = tuple(
    Row(("cpu", "cuda"), owner, name, _fills)
    for owner, name in (("torch:Tensor", "resize_"), ("torch:Tensor", "resize_as_"), ("torch", "resize_as_"))
)


def rows() -> tuple[Row, ...]:
    """Those that this release needs, which :func:`repeat_calls` has found out."""
    return _ROWS if _needed else ()
