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
from ._handout import pin, tensors_among, unpin
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Function = Callable[..., Any]

_REFUSED = "value cannot be converted to type int64_t"


_POINTER = ctypes.sizeof(ctypes.c_void_p)
_HEADER = object.__basicsize__  # bytes of an object before its own fields
_VARARGS, _KEYWORDS, _NOARGS, _STATIC = 1, 2, 4, 32


class _Method(ctypes.Structure):
    """PyMethodDef, a row of the tables that Python's builtin functions are made from."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Repeated(ctypes.Structure):
    """lms_torch_repeated of LmsPythonMethods.h."""

    _fields_ = [
        ("function_count", ctypes.c_size_t),
        ("functions", ctypes.c_void_p),
        ("fields", ctypes.c_size_t),
        ("method_count", ctypes.c_size_t),
        ("methods", ctypes.c_void_p),
        ("descriptors", ctypes.c_void_p),
        ("refusal", ctypes.c_char_p),
        ("again", ctypes.py_object),
        ("none", ctypes.py_object),
    ]


def _pointer(of: Any, field: int) -> int | None:
    return ctypes.c_void_p.from_address(id(of) + _HEADER + field * _POINTER).value


def _method(of: Any, field: int) -> _Method | None:
    """The row that a builtin function or a method's descriptor was made from; None where it is not what it seems."""
    method = _Method.from_address(_pointer(of, field))
    return method if method.name == of.__name__.encode() else None


def _is_function(value: Any) -> bool:
    """Whether this is a builtin function that Python calls by its row alone: the last of its five fields is empty."""
    if not isinstance(value, types.BuiltinFunctionType):
        return False
    method = _method(value, 0)
    known = method is not None and method.flags & ~_STATIC == _VARARGS | _KEYWORDS
    return known and types.BuiltinFunctionType.__basicsize__ == _HEADER + 5 * _POINTER and not _pointer(value, 4)


def _functions() -> Iterator[Any]:
    """All that libtorch_python makes operators callable by."""
    names = ("_VariableFunctionsClass", "TensorBase", "_nn", "_special", "_linalg", "_fft", "_sparse", "_nested")
    for owner in (getattr(torch._C, name) for name in names if hasattr(torch._C, name)):
        for name, value in list(vars(owner).items()):
            if name == "__new__":
                continue  # Python's own, and one row for all types
            yield getattr(owner, name) if isinstance(value, staticmethod) else value


def _pinned(call: Callable[[], Any], inputs: Any) -> Any:
    """Makes a call that is not observed. What it allocates stays: nothing is paged out before it was seen, or pinned."""
    tokens: list[int] = []
    try:
        tokens = pin(list(tensors_among(inputs)), True)
        outputs = call()
        unpin(pin(list(tensors_among((outputs,))), True), True)
        return outputs
    finally:
        unpin(tokens, True)


def _again(function: Any, self: Any, arguments: Any, keywords: Any) -> Any:
    bound = isinstance(function, types.BuiltinFunctionType)
    args, kwargs = (() if bound else (self,)) + (arguments or ()), keywords or {}
    return _pinned(lambda: function(*args, **kwargs), (args, tuple(kwargs.values())))


@functools.lru_cache(None)
def _repeated() -> tuple[_Repeated, Any]:
    """What calls are made again of, and what keeps that alive."""
    functions = [value for value in _functions() if _is_function(value)]
    methods = {}  # by address: some have two names
    for value in _functions():
        if isinstance(value, types.MethodDescriptorType):
            method = _method(value, 3)  # after its type, its name, and its qualified name
            if method is not None and method.flags in (_VARARGS | _KEYWORDS, _NOARGS):
                methods[ctypes.addressof(method)] = value

    def addresses(values: Any) -> Any:
        listed = list(values)
        return (ctypes.c_void_p * len(listed))(*listed)

    held = addresses(map(id, functions)), addresses(methods), addresses(map(id, methods.values()))
    places = [ctypes.addressof(each) for each in held]
    repeated = _Repeated(
        *(len(functions), places[0], _HEADER, len(methods), places[1], places[2], _REFUSED.encode(), _again, None)
    )
    return repeated, (held, functions, methods)


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
    _library.check(_library.load().lms_torch_repeat_calls(ctypes.addressof(_repeated()[0])))


def _call_unobserved(call: Callable[[], Any]) -> Any:
    try:
        torch.autograd._enable_record_function(False)
        return call()
    finally:
        torch.autograd._enable_record_function(True)


def _fills(stock: _Function) -> _Function:
    """What grows a tensor and then, if told to, fills the new part with such a number: that cannot be done twice."""

    def fills(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.dtype is not torch.uint64 or not torch.are_deterministic_algorithms_enabled():
            return stock(self, *args, **kwargs)
        return _pinned(lambda: _call_unobserved(lambda: stock(self, *args, **kwargs)), (self, *args))

    return fills


_ROWS = tuple(
    Row(("cpu", "cuda"), owner, name, _fills)
    for owner, name in (("torch:Tensor", "resize_"), ("torch:Tensor", "resize_as_"), ("torch", "resize_as_"))
)


def rows() -> tuple[Row, ...]:
    """Those that this release needs, which :func:`repeat_calls` has found out."""
    return _ROWS if _needed else ()
