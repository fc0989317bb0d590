"""Sizes as a program may give them: bytes as an int, text such as "8GiB" or "50%", or 0.5, a part of what there is."""

from __future__ import annotations

import numbers
import operator
import re
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Size = int | float | str

_MOST = 2**64 - 1
_PREFIXES = "kmgtpe"
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|b|bytes?|([kmgtpe])(i?b)?)?", re.IGNORECASE | re.ASCII)
_WAYS = "write it as '8GiB', '512 MiB', '1.5GB', or as an int of bytes"
_WAYS_OF_PARTS = "write it as '8GiB', '512 MiB', '1.5GB', '50%' or 0.5 of what there is, or as an int of bytes"


def parse(name: str, value: Size, whole: Callable[[], int] | None = None) -> int:
    """The bytes that a size means.

    In text, K, KiB, M, MiB and so on are powers of 1024, and KB, MB and so on powers of 1000; case does not matter, and a
    number without a unit means what the number itself means. A part of a byte counts for nothing.

    :param name: what errors call the size.
    :param whole: what a part, such as 0.5 or "50%", is a part of, in bytes; None: a part means nothing here.
    :raises TypeError: it is neither a number nor text; or, as a bool, one by mistake.
    :raises ValueError: it is no size, or none from 0 to 2**64 - 1 bytes.
    """
    if isinstance(value, str):
        return _bytes(name, value, *_read(name, value, whole), whole)
    try:
        if isinstance(value, bool):
            raise TypeError
        return _bytes(name, value, Decimal(operator.index(value)), False, whole)
    except TypeError:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            wanted = f"expected a size, got {type(value).__name__}"
            raise TypeError(f"{name}: {wanted}; {_ways(whole)}") from None
    return _bytes(name, value, Decimal(float(value)), True, whole)


def text(nbytes: int) -> str:
    """A size for people to read, such as "1.5 GiB"."""
    size, unit = float(nbytes), "B"
    for prefix in _PREFIXES.upper():
        if size < 1024:
            break
        size, unit = size / 1024, f"{prefix}iB"
    return f"{size:.4g} {unit}"


def _ways(whole: Callable[[], int] | None) -> str:
    return _WAYS if whole is None else _WAYS_OF_PARTS


def _read(name: str, value: str, whole: Callable[[], int] | None) -> tuple[Decimal, bool]:
    """The number in a text, in bytes or as a part; and whether it is a part."""
    found = _TEXT.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{name}: {value!r} is no size; {_ways(whole)}")
    number, unit = Decimal(found[1]), (found[2] or "").lower()
    if unit == "%":
        return number / 100, True
    if not unit:
        return number, "." in found[1]
    if found[3] is None:
        return number, False
    base = 1000 if (found[4] or "").lower() == "b" else 1024
    return number * base ** (_PREFIXES.index(found[3].lower()) + 1), False


def _bytes(name: str, value: Size, number: Decimal, part: bool, whole: Callable[[], int] | None) -> int:
    if part:
        if whole is None:
            raise ValueError(f"{name}: {value!r} is a part, and there is nothing here that it is a part of; {_WAYS}")
        if not (number.is_finite() and 0 < number <= 1):
            raise ValueError(
                f"{name}: {value!r} is no part, more than 0 and at most 1, of what there is{_meant(number)}"
            )
        number *= whole()
    elif not 0 <= number <= _MOST:
        raise ValueError(f"{name}: expected at least 0 and at most 2**64 - 1 bytes, got {value}")
    return int(number)


def _meant(number: Decimal) -> str:
    """What somebody who wrote such a part may have meant."""
    if not (number.is_finite() and 1 < number <= _MOST):
        return ""
    return f"; did you mean '{number.normalize():f}GiB'?" if number < 4096 else f"; did you mean the int {int(number)}?"
