"""Functions that stand in for PyTorch's own while LMS is enabled, for compilers that know those by identity.

``torch.jit.script`` and ``torch.compile`` look a builtin function up in a table of objects, so what replaces one has to
be in that table, too. Instead of a Python function that has been replaced ``torch.compile`` sees the one that was there.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    _Function = Callable[..., Any]

_pairs: list[tuple[_Function, _Function]] = []  # what was replaced, and by what; kept, since the tables hold identities


def compiled_as_stock(wrap: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Decorates what gives the replacement of a function, of which there is then one: compilers see the function itself."""

    @functools.lru_cache(None)
    def wrap_once(stock: _Function) -> _Function:
        replacement = wrap(stock)
        if isinstance(stock, types.FunctionType):
            replacement._torchdynamo_inline = stock  # type: ignore[attr-defined]
            return replacement
        _pairs.append((stock, replacement))
        # Makes the table, if there is none yet, of what is stock. Before 1.5 it has no module of its own.
        names = getattr(torch.jit, "_builtins", torch.jit)._get_builtin_table()
        if id(stock) in names:
            names[id(replacement)] = names[id(stock)]
        return replacement

    return wrap_once


def _rules(stock: _Function) -> _Function:
    """The table of ``torch.compile``, with both of each pair: it is made at any time."""
    known: tuple[Any, int] = (None, 0)  # the table, and how many pairs it has

    def rules() -> dict[Any, Any]:
        nonlocal known
        table = stock()
        if known[0] is not table or known[1] < len(_pairs):
            known = (table, len(_pairs))
            for pair in _pairs:
                rule = table.get(pair[0], table.get(pair[1]))
                if rule is not None:
                    table.update(dict.fromkeys(pair, rule))
        return table

    rules.cache_clear = stock.cache_clear  # type: ignore[attr-defined]  torch.distributed clears it
    return rules


ROWS: tuple[Row, ...] = (Row(("cpu", "cuda"), "torch._dynamo.trace_rules", "get_torch_obj_rule_map", _rules),)
