"""Attributes of the framework, and of what builds upon it, that are replaced while LMS is enabled, and then put back.

Each row of a table names an attribute and how it is replaced; the rows are in the modules of the things they are about.
With LMS off nothing differs from stock. A row whose owner does not exist in this release does not apply, and one whose
module has not been imported is applied when it is.
"""

from __future__ import annotations

import functools
import importlib.abc
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec


class Row(NamedTuple):
    """One attribute, for the kinds of devices that it concerns."""

    devices: tuple[str, ...]
    owner: str  # "module", or "module:attribute.attribute" of it
    name: str
    wrap: Callable[[Any], Any] | None  # gives the replacement of the stock attribute; None hides it


class _Replaced(NamedTuple):
    owner: Any
    replacement: Any  # _MISSING where the attribute is hidden
    own: Any  # what the owner had itself, _MISSING where it had inherited it


_MISSING = object()
_lock = threading.RLock()
_replaced: dict[Row, _Replaced] = {}
_wanted: set[Row] = set()


def _module(row: Row) -> str:
    return row.owner.partition(":")[0]


def _owner(row: Row) -> Any:
    """What has the attribute, or None while there is no such thing."""
    owner = sys.modules.get(_module(row))
    for name in filter(None, row.owner.partition(":")[2].split(".")):
        owner = getattr(owner, name, None)
    return owner


def _replace(row: Row) -> None:
    owner = _owner(row)
    stock = _MISSING if owner is None else getattr(owner, row.name, _MISSING)
    if stock is _MISSING:
        return
    own = vars(owner).get(row.name, _MISSING)
    if row.wrap is None:
        delattr(owner, row.name)
        _replaced[row] = _Replaced(owner, _MISSING, own)
        return
    replacement = row.wrap(stock)
    if callable(stock):
        functools.update_wrapper(replacement, stock)
        path = [*filter(None, row.owner.partition(":")[2].split(".")), row.name]
        if isinstance(replacement, types.FunctionType) and not isinstance(stock, types.FunctionType):
            # Pickled by its name, as every function, and so read as what stands there then. A builtin's name leads elsewhere.
            replacement.__module__, replacement.__qualname__ = _module(row), ".".join(path)
    _replaced[row] = _Replaced(owner, replacement, own)
    setattr(owner, row.name, replacement)


def _put_back(row: Row) -> None:
    owner, replacement, own = _replaced.pop(row)
    if vars(owner).get(row.name, _MISSING) is not replacement:
        return  # other code wrapped it once more: ours has to stay below that
    if own is _MISSING:
        delattr(owner, row.name)
    else:
        setattr(owner, row.name, own)


class _Watch(importlib.abc.MetaPathFinder):
    """Applies the rows of a module when that is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(_module(row) == fullname for row in _wanted):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None and spec.loader is not None:

                def exec_module(module: types.ModuleType, execute: Any = spec.loader.exec_module) -> None:
                    execute(module)
                    apply(_wanted)

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
                return spec
        return None


_watch = _Watch()


def apply(rows: set[Row]) -> None:
    """Replaces what the rows name, and puts everything else back. Thread-safe."""
    global _wanted
    with _lock:
        _wanted = rows
        for row in [row for row in _replaced if row not in rows]:
            _put_back(row)
        for row in rows.difference(_replaced):
            _replace(row)
        if _watch in sys.meta_path:
            sys.meta_path.remove(_watch)
        if any(_module(row) not in sys.modules for row in rows):
            sys.meta_path.insert(0, _watch)
