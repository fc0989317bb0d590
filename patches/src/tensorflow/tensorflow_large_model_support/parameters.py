"""The parameters of ``LMS``, of version 1 and 2: tables of their defaults and checks, and how a call is told apart."""

from __future__ import annotations

import numbers
import operator
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[str, Any], Any]

REQUIRED = object()


class Parameter(NamedTuple):
    """One parameter: `check` gives the value that is kept, or raises a ValueError that names the parameter."""

    name: str
    default: Any
    check: Check
    no_counterpart: str = ""  # why other values than the default have no effect
    but: tuple[Any, ...] = ()  # those that have


# ------------------------------------------------------------------------------------------------ checks


def _expected(name: str, what: str, value: Any) -> ValueError:
    return ValueError(f"{name}: expected {what}, got {value!r}")


def integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise _expected(name, "an int", value) from None


def integer_but_0(name: str, value: Any) -> int:
    if integer(name, value) == 0:
        raise _expected(name, "a number of operations, at least 1, or -1 for the default", value)
    return integer(name, value)


def not_negative(name: str, value: Any) -> int:
    if integer(name, value) < 0:
        raise _expected(name, "at least 0", value)
    return integer(name, value)


def sync_mode(name: str, value: Any) -> int:
    if integer(name, value) not in range(4):
        raise _expected(name, "0, 1, 2 or 3", value)
    return integer(name, value)


def number(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise _expected(name, "an int or a float", value)
    return value


def gib(name: str, value: Any) -> float:
    """From 0 up to what 64 bits can count."""
    if not 0 <= number(name, value) < 1 << 33:
        raise _expected(name, "GiB, at least 0", value)
    return value


def size(name: str, value: Any) -> float | None:
    if value is not None and not gib(name, value) * (1 << 30) >= 1 << 20:
        raise _expected(name, "GiB, enough for 1 MiB, or None", value)
    return value


def graph(name: str, value: Any) -> Any:
    if value is not None and not hasattr(value, "get_operations"):
        raise _expected(name, "a tf.Graph, or None", value)
    return value


def boolean(name: str, value: Any) -> bool:
    return bool(value)


def text(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _expected(name, "a str", value)
    return value


def names(name: str, value: Any) -> set[str]:
    """A set of str. A single str would be taken for the set of its letters."""
    if value is None:
        return set()
    if not _is_collection(value) or not all(isinstance(each, str) for each in value):
        raise _expected(name, "a set of str", value)
    if not all(each.isprintable() for each in value):
        raise _expected(name, "names of operations, or what they begin with", value)
    return set(value)


def some_names(name: str, value: Any) -> set[str]:
    if not names(name, value):
        raise _expected(name, "at least one scope", value)
    return names(name, value)


def slices(name: str, value: Any) -> list[Any]:
    if not _is_collection(value) or not all(
        isinstance(each, (int, str)) and re.fullmatch(r"\d+(:\d*)?|:\d+", str(each)) for each in value
    ):
        raise _expected(name, "a list of int and of str such as '3:5'", value)
    return list(value)


def _is_collection(value: Any) -> bool:
    return isinstance(value, (set, frozenset, list, tuple))


# ------------------------------------------------------------------------------------------------ tables

_BY_USE = "a tensor is brought in once for all that use it, and leaves again only if memory is short"
_ONE_BY_ONE = "operations run as TensorFlow runs them; what they need at once counts against the limit"
_BY_LIMIT = "the limit decides how much is paged"
_ALL_DEVICES = "every GPU is managed, and pages out to host memory"
_NO_REWRITING = "no operations are added to the graph"

_SHARED = (
    Parameter("graph", None, graph),
    Parameter("excl_scopes", set(), names),
    Parameter("incl_scopes", set(), names),
    Parameter("excl_types", set(), names),
    Parameter("incl_types", set(), names),
)

# In the order in which they may be given without their names.
V2 = (
    Parameter("swapout_threshold", -1, integer_but_0),
    Parameter("swapin_groupby", -1, integer, _BY_USE),
    Parameter("swapin_ahead", -1, integer),
    Parameter("sync_mode", 0, sync_mode),
    Parameter("serialization", [], slices, _ONE_BY_ONE),
    Parameter("serialization_by_size", 0, gib, _ONE_BY_ONE),
    Parameter("debug", False, boolean),
    Parameter("debug_level", 1, integer),
    Parameter("cpu_device", "/cpu:0", text, _ALL_DEVICES),
    Parameter("gpu_device", None, text, _ALL_DEVICES),
    *_SHARED,  # which only its first releases had
)

V1 = (
    Parameter("optimizer_scopes", REQUIRED, some_names),
    _SHARED[0],
    Parameter("starting_scope", None, text, _BY_LIMIT),
    Parameter("starting_op_names", None, names, _BY_LIMIT),
    *_SHARED[1:],
    Parameter("lb", 1, not_negative),
    Parameter("ub", 10000, not_negative),
    Parameter("n_tensors", -1, integer, _BY_LIMIT, but=(0,)),
    Parameter("fuse_swapins", False, boolean, _BY_USE),
    Parameter("ctrld_strategy", "chain_rule", text, _NO_REWRITING),
    Parameter("swap_branches", False, boolean, _BY_LIMIT),
    Parameter("branch_threshold", 0, not_negative, _BY_LIMIT),
    *V2[6:9],
)

_DEFAULTS = {each.name: each.default for each in V1}
_TUNED = ("swapout_threshold", "swapin_groupby", "swapin_ahead")  # by version 2 itself, where negative
_AWAITS_OUT, _AWAITS_IN = (1, 3), (2, 3)  # of sync_mode
_ONLY_V1 = {each.name for each in V1} - {each.name for each in V2}


class Parameters(NamedTuple):
    """What a call gave, checked, with the defaults of the rest."""

    version: int
    values: dict[str, Any]
    without_effect: dict[str, str]  # why, of what was given and has no counterpart

    def get(self, name: str) -> Any:
        """The value, or None if this version has no such parameter."""
        return self.values.get(name)

    def auto(self) -> bool:
        """Whether version 2 would have looked for values itself."""
        tuned = [self.get(name) for name in _TUNED]
        return self.version == 2 and min(tuned) < 0 and not (tuned[0] > 0 and self.get("sync_mode") in _AWAITS_IN)

    def all_auto(self) -> bool:
        return self.version == 2 and max(self.get(name) for name in _TUNED) < 0

    def bounds(self) -> dict[str, Any]:
        """The distances, as ``_tuning.set_distances`` takes them; defaults bound nothing."""
        if self.version == 1:
            least, most = (None if self.get(name) == _DEFAULTS[name] else self.get(name) for name in ("lb", "ub"))
            least = _distance(least or 0)
            return {"in_least": least, "in_most": None if most is None else max(_distance(most), least)}
        waits = self.get("sync_mode") in _AWAITS_IN
        return {
            "out_least": _distance(self.get("swapout_threshold")),
            "in_least": 0 if waits else _distance(self.get("swapin_ahead")),
            "in_most": 0 if waits else None,
            "early_out": self.get("sync_mode") not in _AWAITS_OUT,
        }


def _distance(value: int) -> int:
    """What 64 bits can count: no program has as many operations."""
    return min(max(value, 0), (1 << 63) - 1)


def bind(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Parameters:
    """The parameters of a call. Version 1 begins with scopes, and has keywords that version 2 lacks.

    :raises TypeError: an argument is missing, unknown or given twice.
    :raises ValueError: one is wrong.
    """
    version = 1 if arguments and _is_collection(arguments[0]) or _ONLY_V1.intersection(keywords) else 2
    table = {1: V1, 2: V2}[version]
    if len(arguments) > len(table):
        raise TypeError(f"LMS of version {version} takes {len(table)} arguments, got {len(arguments)}")
    given = {each.name: value for each, value in zip(table, arguments)}  # noqa: B905  what Python 3.7 runs, too
    for name, value in keywords.items():
        if name in given:
            raise TypeError(f"LMS got two values for {name!r}")
        if name not in (each.name for each in table):
            raise TypeError(f"LMS of version {version}, which these arguments are for, has no argument {name!r}")
        given[name] = value
    missing = [each.name for each in table if each.default is REQUIRED and each.name not in given]
    if missing:
        raise TypeError(f"LMS of version {version}, which these arguments are for, needs {missing[0]!r}")
    values = {each.name: each.check(each.name, given.get(each.name, each.default)) for each in table}
    without_effect = {
        each.name: each.no_counterpart
        for each in table
        if each.no_counterpart and values[each.name] not in (each.check(each.name, each.default), *each.but)
    }
    return Parameters(version, values, without_effect)
