"""JSON as every client reads it: what some readers take and others do not, or take as something else, is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

LARGEST = 1 << 30  # bytes; the index of the largest channel there is has a third of it
_DEEPEST = 64  # tables and lists inside of each other
_DIGITS = 19  # of a whole number, which has 64 bits in other languages


def parse(data: bytes, largest: int = LARGEST) -> Any:
    """Raises ValueError, which says what is wrong with it."""
    if len(data) > largest:
        raise ValueError(f"it has more than {largest} bytes")
    try:
        found = json.loads(
            data.decode(),
            object_pairs_hook=_table,
            parse_constant=_no_constant,
            parse_int=_whole,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise ValueError(f"it is more than {_DEEPEST} levels deep") from error
    _check(found)
    return found


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = Counter(name for name, _ in pairs)
        raise ValueError(f"it has {names.most_common(1)[0][0]!r} twice in one table")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _whole(text: str) -> int:
    if len(text.removeprefix("-")) > _DIGITS:
        raise ValueError(f"a number has more than {_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"the number {text[:20]} is too large")
    return found


def _check(found: Any) -> None:
    """Looks for what cannot be written again: tables too deep, and halves of a character."""
    level = [found]
    for _ in range(_DEEPEST + 1):
        if not level:
            return
        texts = [text for value in level for text in (value if isinstance(value, dict) else [value])]
        "".join(text for text in texts if isinstance(text, str)).encode()
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    raise ValueError(f"it is more than {_DEEPEST} levels deep")
