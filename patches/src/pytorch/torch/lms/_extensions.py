"""Functions that compiled extensions bind without an operator, as pybind11 does: given their tensors pinned.

Such a function launches kernels on the memory of its arguments, and the dispatcher sees nothing of it. Often it is called
in the backward pass of a ``torch.autograd.Function``, with tensors that were saved long before. On CUDA nothing serves a
fault, so from the time that LMS is enabled the functions of every extension that is linked against PyTorch, and the
methods of its classes, pin the tensors that they are given until they return; what they allocate is protected meanwhile,
and what they return may be paged out from then on.

Replaced are the functions in their modules and where other modules have imported them to, as extensions are loaded. What
a program keeps elsewhere, in a closure or an object, stays as it is, and so does what is bound by other means than
pybind11: there ``torch.lms.pin`` helps.
"""

from __future__ import annotations

import functools
import gc
import importlib.machinery
import mmap
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from ._handout import pinned, tensors_among
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Function = Callable[..., Any]

_LINKED = b"libtorch_python.so"  # what has to do with tensors as Python objects is linked against it

_lock = threading.Lock()
_wrappers: dict[int, _Function] = {}  # by the identity of the function, which its wrapper keeps alive
_places: list[tuple[Any, str, _Function, _Function]] = []  # (owner, name, stock, wrapper)
_active = False


def _bound(stock: _Function) -> _Function:
    """The function, its tensors pinned. There is one for each, however often it was imported."""

    def bound(*args: Any, **kwargs: Any) -> Any:
        inputs = (args, tuple(kwargs.values()))
        if not any(tensor.is_cuda for tensor in tensors_among(inputs)):
            return stock(*args, **kwargs)
        return pinned(lambda: stock(*args, **kwargs), inputs, True)

    if id(stock) not in _wrappers:
        _wrappers[id(stock)] = functools.wraps(stock)(bound)
    return _wrappers[id(stock)]


def _is_extension(module: Any) -> bool:
    """Whether this was loaded from a library that is linked against PyTorch, and is not a part of PyTorch."""
    spec = getattr(module, "__spec__", None)
    if not isinstance(getattr(spec, "loader", None), importlib.machinery.ExtensionFileLoader):
        return False
    if spec.name.partition(".")[0] in ("torch", "functorch"):
        return False
    try:
        with open(spec.origin, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_LINKED) >= 0
    except (OSError, ValueError):
        return False


def _is_submodule(value: Any, owner: Any, name: str) -> bool:
    """Whether the extension itself has made this."""
    is_below = isinstance(value, types.ModuleType) and value.__name__ == f"{owner.__name__}.{name}"
    return is_below and getattr(value, "__spec__", None) is None


def _functions(owner: Any) -> Iterator[tuple[Any, str, _Function]]:
    """The bound functions of a module and its submodules, and the methods of its classes: (owner, name, function)."""
    for name, value in list(vars(owner).items()):
        if name.startswith("__") and name != "__call__":
            continue
        if isinstance(value, types.BuiltinFunctionType) or type(value).__name__ == "instancemethod":
            yield owner, name, value
        elif isinstance(owner, types.ModuleType) and getattr(value, "__module__", None) == owner.__name__:
            if isinstance(value, type):
                yield from _functions(value)
        elif _is_submodule(value, owner, name):
            yield from _functions(value)


def _replace(owner: Any, name: str, stock: _Function) -> None:
    wrapper = _bound(stock)
    try:
        setattr(owner, name, wrapper)
    except (AttributeError, TypeError):
        return  # this class cannot be changed
    _places.append((owner, name, stock, wrapper))


def _wrap(extensions: list[types.ModuleType]) -> None:
    """Replaces the functions of extensions. The caller holds the lock."""
    found = [each for extension in extensions for each in _functions(extension)]
    for owner, name, stock in found:
        _replace(owner, name, stock)
    stocks = {id(stock) for _, _, stock in found}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in stocks:
                _replace(module, name, value)


def wrap_all(active: bool) -> None:
    """Replaces the functions of all extensions that are loaded, or puts every one back. Thread-safe."""
    global _active
    with _lock:
        if active == _active:
            return
        _active = active
        if active:
            # Not all are in sys.modules: those that torch.utils.cpp_extension has built are not.
            modules = [each for each in gc.get_objects() if type(each) is types.ModuleType]
            _wrap([module for module in modules if _is_extension(module)])
            return
        for owner, name, stock, wrapper in _places:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, stock)
        _places.clear()
        _wrappers.clear()


def _exec_module(stock: _Function) -> _Function:
    def exec_module(self: Any, module: types.ModuleType) -> None:
        stock(self, module)
        with _lock:
            if _active and _is_extension(module):
                _wrap([module])

    return exec_module


ROWS: tuple[Row, ...] = (Row(("cuda",), "importlib.machinery:ExtensionFileLoader", "exec_module", _exec_module),)
