"""Numbers above 2**63 - 1, which some releases from 2.3 on cannot show to observers.

There every operator that is given such a number, or returns one, fails while an observer asks for inputs and outputs.
The number is turned down before the operator begins, so the call is made again, unobserved, with its tensors pinned.

That is for functions and methods that are called in Python. Not for operators by their names in ``torch.ops``, nor
for scripts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ._compilers import compiled_as_stock
from ._handout import pinned
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    _Function = Callable[..., Any]

_REFUSED = "value cannot be converted to type int64_t"

# These are given a tensor that Python has made of the number.
_GIVEN_TENSORS = {name + ending for name in ("add", "div", "mul", "sub") for ending in ("", "_")}

# Those whose operators have other names.
_OTHER_NAMES = (
    *("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__mod__", "__ne__", "__pow__", "__rmod__", "__rpow__"),
    *("item", "new_full"),
)


def _call_unobserved(call: Callable[[], Any]) -> Any:
    # It was observed, or it would not have failed.
    torch.autograd._enable_record_function(False)
    try:
        return call()
    finally:
        torch.autograd._enable_record_function(True)


@compiled_as_stock
def _any_number(stock: _Function) -> _Function:
    def any_number(*args: Any, **kwargs: Any) -> Any:
        try:
            return stock(*args, **kwargs)
        except RuntimeError as error:
            if _REFUSED not in str(error):
                raise
        return pinned(
            lambda: _call_unobserved(lambda: stock(*args, **kwargs)),
            (args, tuple(kwargs.values())),
            current_stream=True,
        )

    return any_number


def _shown() -> bool:
    """Whether this release can show such a number to the observer, which is in place."""
    if not hasattr(torch, "uint64"):
        return True
    try:
        torch.full((), 2**64 - 1, dtype=torch.uint64)
    except RuntimeError:
        return False
    return True


@functools.lru_cache(None)
def _rows() -> tuple[Row, ...]:
    names = {
        schema.name.partition("aten::")[2]
        for schema in torch._C._jit_get_all_schemas()
        if any("number" in str(argument.type) for argument in schema.arguments)
    }
    return tuple(
        Row(("cpu", "cuda"), owner, name, _any_number)
        for owner, has in (("torch", torch), ("torch:Tensor", torch.Tensor))
        for name in sorted({*names, *_OTHER_NAMES} - _GIVEN_TENSORS)
        if name and hasattr(has, name)
    )


_needed: bool | None = None


def rows() -> tuple[Row, ...]:
    """Those that this release needs. The observer is in place."""
    global _needed
    if _needed is None:
        _needed = not _shown()
    return _rows() if _needed else ()
