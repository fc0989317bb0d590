"""Graphs that inductor compiled, whose kernels bypass the dispatcher: pinned kernel by kernel.

What inductor generates for a graph is a Python module whose function ``call`` allocates buffers, calls kernels that are
globals of the module, and calls operators, which the observer sees. So while LMS is enabled those globals are replaced
by functions that pin what the kernel is given; before a buffer's first kernel it is not known as a tensor's, and stays.
Triton's kernels pin for themselves (``_handout``).

Of a graph that is anything else (C++ all through, a CUDA graph, a kernel that takes raw pointers) nothing is replaced,
and its inputs are pinned from start to end.
"""

from __future__ import annotations

import re
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from . import _handout
from ._handout import pin, unpin

if TYPE_CHECKING:
    from collections.abc import Callable

    _Globals = dict[str, Any]

_lock = threading.Lock()
_NAME = "_lms_kernels"  # the replaced kernels by name, in a module's globals; None where that is no way to pin
_modules: list[_Globals] = []  # those with replaced kernels

# How a kernel is defined: its name, of which kind it is, and for C++ what it takes.
_KERNEL = re.compile(r"^(\w+) = async_compile\.(\w+)\((?:\[([^\]]*)\])?", re.MULTILINE)
_PIN_THEMSELVES = ("triton",)
_ALIGNING = "align_inputs_from_check_idxs.<locals>.run"  # copies inputs by operators, and calls the graph


def _module_of(call: Any) -> _Globals | None:
    """The globals of the module that was generated for a graph, which this calls; None when it calls anything else."""
    while getattr(call, "__qualname__", "") == _ALIGNING:
        captured = dict(zip(call.__code__.co_freevars, call.__closure__))  # noqa: B905  the same number
        call = captured["model"].cell_contents
    function = getattr(call, "__func__", call)
    if not isinstance(function, types.FunctionType) or "extern_kernels" not in function.__globals__:
        return None
    parts = getattr(getattr(call, "__self__", None), "partitions", ())  # each may have become a CUDA graph
    own = all(getattr(part, "__globals__", None) is function.__globals__ for part in parts)
    return function.__globals__ if own else None


def _kernels(module: _Globals) -> dict[str, tuple[bool, ...]] | None:
    """The C++ kernels of a module, by name, and which of their arguments each may write; None where pointers are given."""
    try:
        with open(module["__file__"], encoding="utf-8") as file:
            source = file.read()
    except (KeyError, OSError):
        return None
    found = {}
    for name, kind, arguments in _KERNEL.findall(source):
        if kind == "cpp_pybinding":
            found[name] = tuple("const " not in argument for argument in arguments.split(","))
        elif kind not in _PIN_THEMSELVES:
            return None
    return None if "data_ptr(" in source or len(_KERNEL.findall(source)) != source.count("= async_compile.") else found


def _pinned(kernel: Callable[..., None], writes: tuple[bool, ...]) -> Callable[..., None]:
    def pinned(*arguments: Any) -> None:
        tensors = [(each, write) for each, write in zip(arguments, writes) if isinstance(each, torch.Tensor)]  # noqa: B905
        tokens = pin([tensor for tensor, write in tensors if write], True)
        try:
            tokens += pin([tensor for tensor, write in tensors if not write], True, write=False)
            kernel(*arguments)
        finally:
            unpin(tokens, True)

    return pinned


def _replace_kernels(module: _Globals) -> None:
    writes = _kernels(module)
    if writes is None:
        module[_NAME] = None
        return
    stock = {name: module[name] for name in writes}
    module.update({name: _pinned(kernel, writes[name]) for name, kernel in stock.items()})
    module[_NAME] = stock
    _modules.append(module)


def _pins_by_kernel(call: Any) -> bool:
    """Whether what calls a graph calls kernels that pin what they are given, as they do after this."""
    module = _module_of(call)
    if module is None:
        return False
    if _NAME not in module:
        with _lock:
            if _NAME not in module:
                _replace_kernels(module)
    return module.get(_NAME) is not None


def put_back() -> None:
    """Gives every module its kernels again: LMS is not enabled any more. Thread-safe."""
    with _lock:
        for module in _modules:
            module.update(module.pop(_NAME))
        _modules.clear()


def call_graph(call: Callable[[Any, Any], Any], graph: Any, inputs: Any) -> Any:
    """Runs a compiled graph, whose kernels bypass the dispatcher, through its method ``call(graph, inputs)``."""
    before = _handout.graph.all_pinned
    try:
        if _pins_by_kernel(getattr(graph, "current_callable", None)):
            _handout.graph.all_pinned = False
            return call(graph, inputs)
        constants = getattr(graph, "constants", None)
        # What a graph froze into itself is pinned kernel by kernel.
        _handout.graph.all_pinned = constants is not None and not getattr(graph, "frozen_param_names", None)
        given = (inputs, tuple((constants or {}).values()))
        return _handout.pinned(lambda: call(graph, inputs), given, True)
    finally:
        _handout.graph.all_pinned = before
