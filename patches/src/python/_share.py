"""The terms on which a process shares a device's memory, or a named budget of it, with other processes.

docs/sharing.md says who gets how much. Sizes are in bytes.
"""

from __future__ import annotations

import grp
import numbers
import re
from typing import TYPE_CHECKING, NamedTuple

from . import _sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._sizes import Size

_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,64}")
_LEAST_WEIGHT, _MOST_WEIGHT, _MOST_PRIORITY = 1e-3, 1e6, 1000  # as in share_terms.h
_FROM_TEXT = {"weight": float, "minimum": str, "priority": int, "group": str}


class Share(NamedTuple):
    """How a process shares.

    :ivar name: of the budget; all processes that give the same share it. Empty: the device's own.
    :ivar weight: from 0.001 to 1000000; who has twice the weight of another gets twice as much, if both need it.
    :ivar minimum: bytes, or text such as "2GiB", that the process keeps though others need them; what it does not use
        of them others have meanwhile.
    :ivar priority: from -1000 to 1000; who has a higher one is served first, and the others get what is left.
    :ivar group: a group of the system whose members may share, too; None: only this user's processes.
    """

    name: str = ""
    weight: float = 1.0
    minimum: Size = 0
    priority: int = 0
    group: str | None = None


def given(share: bool | str | Share) -> Share | None:
    """What an argument means; None: the process does not share.

    :raises TypeError: it is none.
    """
    if isinstance(share, bool):
        return Share() if share else None
    if isinstance(share, str):
        if not share:
            raise ValueError("share: an empty name; True is the device's own budget")
        return Share(share)
    if isinstance(share, Share):
        return share
    raise TypeError(f"share: expected a bool, a budget's name or a Share, got {type(share).__name__}")


def read(text: str) -> Share | None:
    """What "job42,weight=2,minimum=1GiB" means; "1" is the device's own budget, "0" and "" none.

    :raises ValueError: it is not written so.
    """
    name, *options = text.strip().split(",")
    values: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in _FROM_TEXT or key in values:
            raise ValueError(f"share: {option!r} is none of {', '.join(_FROM_TEXT)}, each once, as 'weight=2'")
        values[key] = value
    return from_text(name or "0", values)


def from_text(name: str, values: dict[str, str]) -> Share | None:
    """A share of which the parts are text; None where the name is a no."""
    if name.lower() in ("0", "false", "no", "off"):
        if values:
            raise ValueError(f"share: {next(iter(values))} is a part of it, and it is {name}")
        return None
    if name.lower() in ("1", "true", "yes", "on"):
        name = ""
    read = {}
    for key, value in values.items():
        try:
            read[key] = _FROM_TEXT[key](value)
        except ValueError:
            raise ValueError(f"share: {value!r} is no {key}") from None
    return Share(name, **read)


def check_group(share: Share) -> None:
    """Raises where there is no such group, as the library would."""
    if share.group is not None and not share.group.isdecimal():
        try:
            grp.getgrnam(share.group)
        except KeyError:
            raise ValueError(f"share: there is no group {share.group!r} on this machine") from None


def terms(share: Share, whole: Callable[[], int] | None) -> bytes:
    """The text of share_terms.h.

    :param whole: the device's memory, of which a minimum such as 0.1 is a part.
    :raises TypeError, ValueError: a part of it is wrong; the sentence names it.
    """
    if not isinstance(share.name, str):
        raise TypeError(f"share: expected a name, got {type(share.name).__name__}")
    if share.name and not _NAME.fullmatch(share.name):
        raise ValueError(
            f"share: {share.name!r} is no name of a budget: at most 64 letters, digits, '-', '_' and '.', the first no '.'"
        )
    if isinstance(share.weight, bool) or not isinstance(share.weight, numbers.Real):
        raise TypeError(f"share: expected a number as the weight, got {type(share.weight).__name__}")
    if not _LEAST_WEIGHT <= share.weight <= _MOST_WEIGHT:
        raise ValueError(f"share: a weight of {share.weight} is none from 0.001 to 1000000; 2 is twice the share of 1")
    if isinstance(share.priority, bool) or not isinstance(share.priority, numbers.Integral):
        raise TypeError(f"share: expected an int as the priority, got {type(share.priority).__name__}")
    if abs(share.priority) > _MOST_PRIORITY:
        raise ValueError(f"share: a priority of {share.priority} is none from -1000 to 1000; higher is served first")
    minimum = _sizes.parse("share: minimum", share.minimum, whole)
    text = f"{share.name},weight={float(share.weight)!r},minimum={minimum},priority={int(share.priority)}"
    if share.group is None:
        return text.encode()
    if not isinstance(share.group, str):
        raise TypeError(f"share: expected the name of a group, got {type(share.group).__name__}")
    if not share.group or not share.group.isprintable() or "," in share.group:
        raise ValueError(f"share: {share.group!r} is no name of a group")
    return f"{text},group={share.group}".encode()
