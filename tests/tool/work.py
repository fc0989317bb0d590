"""Work counted, not timed: lines of Python that ran, entries that built-in operations went through, bytes read, processes started.

`"x" in names` and `text[1:]` are one line each, however long the list or the text is. So while work is counted the tool's functions
run with the lengths of what such operations go through noted down.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import itertools
import queue
import selectors
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

TOOLS = ("lmsbuild", "lmsreplay", "work_samples")
_SIZED = (str, bytes, bytearray, list, tuple, deque, AbstractSet, Mapping, KeysView, ValuesView)
_SOUGHT = (str, bytes, bytearray, list, tuple, deque, ValuesView)  # what `in` goes through
_COPYING = (list, tuple, set, frozenset, dict, str, bytes, bytearray)
# Built-in functions that go through nothing of what they are given, or are called on.
_CONSTANT = {
    *("add", "append", "bisect_left", "bisect_right", "clear", "discard", "endswith", "get", "getattr", "hasattr"),
    *("id", "isinstance", "items", "iter", "keys", "len", "next", "pop", "popitem", "put", "repr", "setdefault"),
    *("startswith", "unpack_from", "values"),
}
_WHOLE = {"copy", "union", "difference", "symmetric_difference"}  # go through the set or table that they are called on
# Where threads and programs are waited for, in as many lines as that takes time; and the counting itself.
_BY_TIME = {__file__, *(str(module.__file__) for module in (queue, selectors, subprocess, threading))}
_SLACK = 1.1  # of the work of four times the entries
_SORTING = 1.35  # of that, where comparisons are counted: log(4n) / log(n) for 60 entries


@dataclass(frozen=True)
class Work:
    """What was done."""

    steps: int  # lines of Python, and lengths of what built-in operations went through
    read: int  # bytes
    started: int  # processes


def assert_linear(
    prepare: Callable[[int], Callable[[], object]], entries: int, *, few: int = 2, sorts: bool = False
) -> None:
    """Fails when four times the entries are more than four times the work; `prepare` makes what is run for that many.

    What `few` of them take is what does not depend on their number. Comparisons in `sorts` grow a little more.
    """
    prepare(few)()  # imports modules, and fills what is kept between calls
    least, some, many = (count(prepare(size)) for size in (few, entries, 4 * entries))
    growth = (4 * entries - few) / (entries - few) * _SLACK * (_SORTING if sorts else 1)
    noise = Work(steps=1000, read=1 << 14, started=0)  # of waiting, and of counting
    for kind, *numbers, more in zip(
        Work.__annotations__, *map(astuple, (least, some, many)), astuple(noise), strict=True
    ):
        base, one, four = numbers
        assert four - base <= growth * max(one - base, 0) + more, (
            f"{kind} of {few}, {entries} and {4 * entries} entries: {', '.join(map(str, numbers))}"
        )


def count(run: Callable[[], object]) -> Work:
    """The work of a call, in all its threads."""
    lines, lengths, started = itertools.count(), list[int](), list[object]()

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            next(lines)  # which no thread interrupts
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return None if frame.f_code.co_filename in _BY_TIME else line

    before = sys.gettrace()
    with _noted(lengths), _starts(started):
        read = _read()
        threading.settrace(call)
        sys.settrace(call)
        try:
            run()
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]
        read = _read() - read
    return Work(next(lines) + sum(lengths), read, len(started))


def _read() -> int:
    """Bytes that this process has read from files and pipes."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


@contextmanager
def _starts(started: list[object]) -> Iterator[None]:
    begin = subprocess.Popen.__init__

    @functools.wraps(begin)
    def noted(self: subprocess.Popen[Any], *arguments: Any, **named: Any) -> None:
        started.append(self)
        begin(self, *arguments, **named)

    subprocess.Popen.__init__ = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        subprocess.Popen.__init__ = begin  # type: ignore[method-assign]


@contextmanager
def _noted(lengths: list[int]) -> Iterator[None]:
    """Has the tool's functions note the lengths of what built-in operations go through."""
    helpers = _helpers(lengths)
    codes: dict[tuple[str, str, int], CodeType] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in TOOLS:
            codes |= _codes(module)
    swapped = []
    for each in gc.get_objects():
        if type(each) is FunctionType and (code := codes.get(_key(each.__code__))):
            swapped.append((each, each.__code__))
            each.__code__ = code
    vars(builtins).update(helpers)
    try:
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code
        for name in helpers:
            delattr(builtins, name)


def _helpers(lengths: list[int]) -> dict[str, Callable[..., Any]]:
    def seen(value: Any) -> Any:
        lengths.append(_length(value))
        return value

    def called(function: Any, /, *arguments: Any, **named: Any) -> Any:
        name, result = getattr(function, "__name__", ""), function(*arguments, **named)
        if name in _CONSTANT or str(getattr(function, "__module__", "")).partition(".")[0] in TOOLS:
            return result
        if isinstance(function, BuiltinFunctionType) or function in _COPYING:
            lengths.extend(map(_length, arguments))
            own = getattr(function, "__self__", None)
            lengths.append(_length(own) if isinstance(own, _SOUGHT) or name in _WHOLE else 0)
        else:  # whose lines are counted
            lengths.extend(len(text) for text in arguments if isinstance(text, (str, bytes)))
        lengths.append(len(result) if isinstance(result, (str, bytes)) else 0)
        return result

    def contained(value: Any, container: Any) -> bool:
        lengths.append(_length(container) if isinstance(container, _SOUGHT) else 0)
        return value in container

    return {"_work_seen": seen, "_work_called": called, "_work_contained": contained}


def _length(value: Any) -> int:
    if isinstance(value, _SIZED):
        return len(value)
    return int(value.size) if type(value).__module__ == "numpy" else 0


class _Noting(ast.NodeTransformer):
    """Puts the helpers around operations whose work depends on the length of something."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        return _helper(node, "called", node.func, *node.args, keywords=node.keywords)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            found = _helper(node, "contained", node.left, node.comparators[0])
            is_in = isinstance(node.ops[0], ast.In)
            return found if is_in else ast.copy_location(ast.UnaryOp(ast.Not(), found), node)
        node.left = _helper(node.left, "seen", node.left)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, (ast.Add, ast.Sub, ast.BitOr, ast.BitAnd)):
            node.left, node.right = (_helper(side, "seen", side) for side in (node.left, node.right))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        node.value = _helper(node.value, "seen", node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        is_part = isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load)
        return _helper(node, "seen", node) if is_part else node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _helper(node.value, "seen", node.value)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        pairs = zip(node.keys, node.values, strict=True)
        node.values = [value if key else _helper(value, "seen", value) for key, value in pairs]
        return node


def _helper(place: ast.AST, name: str, *arguments: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.expr:
    function = ast.copy_location(ast.Name(f"_work_{name}", ast.Load()), place)
    return ast.copy_location(ast.Call(function, list(arguments), keywords or []), place)


@functools.cache
def _codes(module: ModuleType) -> dict[tuple[str, str, int], CodeType]:
    """The functions of a module as they note what they do, by the place where they are defined."""
    file = module.__file__ or ""
    text = Path(file).read_text()
    flags = __import__("__future__").annotations.compiler_flag
    left = [compile(_Noting().visit(ast.parse(text)), file, "exec", flags, dont_inherit=True)]
    found = {}
    while left:
        code = left.pop()
        found[_key(code)] = code
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno
