"""What releases before 1.6 do not show to the observer of operations, which pins for itself here.

There an operation shows the tensors that it is given, but not lists of them; and copies, and changes of a tensor's
size, are not shown at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _library
from ._compilers import compiled_as_stock
from ._handout import pin, pinned, tensors_among, unpin
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    _Method = Callable[..., Any]


def _pin(values: Any, write: bool) -> list[int]:
    tensors = list(tensors_among(values))
    return pin(tensors, True, write) if tensors else []


def _pinned(call: Callable[[], Any], read: Any, written: Any) -> Any:
    tokens = _pin(read, False)
    try:
        tokens += _pin(written, True)
        return call()
    finally:
        unpin(tokens, True)


@compiled_as_stock
def _reads(stock: _Method) -> _Method:
    """A function that reads its arguments."""

    def reads(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        read = (args, *(value for value in kwargs.values() if value is not out))
        return _pinned(lambda: stock(*args, **kwargs), read, (out,))

    return reads


def _writes_first(stock: _Method) -> _Method:
    """A function that writes its first argument and reads the others."""

    def writes_first(written: Any, *args: Any, **kwargs: Any) -> Any:
        return _pinned(lambda: stock(written, *args, **kwargs), (args, tuple(kwargs.values())), (written,))

    return writes_first


def _keep_for_backward(indices: Any, *differentiable: Any) -> None:
    """Keeps indices that the backward pass will use, out of sight, resident for as long as they live."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_among(differentiable)):
        _pin(indices, False)  # the end of the tensor ends the pin


def _getitem(stock: _Method) -> _Method:
    def getitem(self: torch.Tensor, index: Any) -> Any:
        if isinstance(index, (int, slice)):
            return stock(self, index)
        _keep_for_backward((index,), self)
        return _pinned(lambda: stock(self, index), (index,), ())

    return getitem


def _setitem(stock: _Method) -> _Method:
    def setitem(self: torch.Tensor, index: Any, value: Any) -> None:
        _keep_for_backward((index,), self, value)
        _pinned(lambda: stock(self, index, value), (index, value), (self,))

    return setitem


@compiled_as_stock
def _index_put(stock: _Method) -> _Method:
    def index_put(self: torch.Tensor, indices: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        _keep_for_backward((indices,), self, values)
        return _pinned(lambda: stock(self, indices, values, *args, **kwargs), (indices, values), (self,))

    return index_put


def _script(stock: _Method) -> _Method:
    """A script, in which lists are not shown either: what it makes is protected until it ends."""

    def script(self: Any, *args: Any, **kwargs: Any) -> Any:
        return pinned(lambda: stock(self, *args, **kwargs), (args, tuple(kwargs.values())), True)

    return script


_ANY = ("cpu", "cuda")

_ROWS: tuple[Row, ...] = (
    *(Row(_ANY, "torch", name, _reads) for name in ("cat", "stack", "_cudnn_rnn_flatten_weight")),
    *(
        Row(_ANY, owner, name, _reads)
        for owner in ("torch", "torch._VF", "torch.nn._VF")
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
    ),
    *(Row(_ANY, "torch:Tensor", name, _writes_first) for name in ("copy_", "resize_", "resize_as_")),
    *(
        Row(_ANY, owner, name, _index_put)
        for owner in ("torch", "torch:Tensor")
        for name in ("index_put", "index_put_")
    ),
    *(Row(_ANY, f"torch._C:{name}", "__call__", _script) for name in ("Function", "ScriptFunction", "ScriptMethod")),
    Row(_ANY, "torch:Tensor", "__getitem__", _getitem),
    Row(_ANY, "torch:Tensor", "__setitem__", _setitem),
)


def rows() -> tuple[Row, ...]:
    """Those that this release needs."""
    return () if _library.load().lms_torch_observes_all() else _ROWS
