"""What a package says of itself, field by field: whether clients can read it. They read a whole index, or nothing of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from lmsbuild.conda import tools
from lmsbuild.conda.package_file import shown

_LARGEST_NUMBER = (1 << 63) - 1
_LAST_DATE = 253_402_300_799_999  # of a timestamp, in milliseconds: the end of the year 9999
# A program's name and the function that it calls; the client writes a file of that name.
_ENTRY_POINT = re.compile(r"\w[\w.-]*\s*=\s*[\w.]+\s*:\s*[\w.]+", re.ASCII)

_Check = Callable[[Any], str]  # what a value has to be, as it is not that; "" when it is


def faults(described: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the tables that an index is made of, as `Package.description` has them."""
    stated = described["index"]
    for key in ("name", "version", "build", "build_number", "depends", "subdir"):
        if key not in stated:
            yield f"has an index.json without {key}"
    for table in _FIELDS:
        yield from field_faults(table, described.get(table, {}))
    if "paths" in described and "paths_version" not in described["paths"]:
        yield "has a paths.json without paths_version"
    for row in described.get("paths", {}).get("paths", []):
        for field, wanted in _unfit(row, _ROW):
            yield f"has a paths.json with {field} of {shown(row['_path'])}, which is not {wanted}"


def field_faults(table: str, stated: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the fields of one of these tables."""
    article = "an" if table[0] in "ai" else "a"
    for field, wanted in _unfit(stated, _FIELDS[table]):
        yield f"has {article} {table}.json with {field}, which is not {wanted}"


def _unfit(stated: Mapping[str, Any], checks: Mapping[str, _Check]) -> Iterator[tuple[str, str]]:
    """Each field that is not as it has to be, with its value; and what it has to be."""
    for key, value in stated.items():
        if key in checks and (wanted := checks[key](value)):
            yield f"{key} {_short(value)}", wanted


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.isprintable() else "a text of one line"


def _any_text(value: Any) -> str:
    texts = value if isinstance(value, list) else [value]
    return "" if all(text is None or isinstance(text, str) for text in texts) else "a text"


def _number(largest: int) -> _Check:
    def check(value: Any) -> str:
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest
        return "" if fits else f"a whole number from 0 to {largest}"

    return check


def _one_of(*allowed: Any) -> _Check:
    def check(value: Any) -> str:
        fits = any(value is each or (isinstance(value, str) and value == each) for each in allowed)
        return "" if fits else f"one of {', '.join(map(repr, allowed))}"

    return check


def _or_none(check: _Check) -> _Check:
    return lambda value: "" if value is None else check(value)


def _texts(value: Any) -> str:
    return "" if isinstance(value, list) and not any(map(_text, value)) else "a list of texts"


def _requirements(value: Any) -> str:
    if _texts(value) or not all(map(_is_requirement, value)):
        return "a list of requirements"
    return ""


@cache
def _is_requirement(text: str) -> bool:
    try:
        # One that is an address makes clients get the package from there, and not from the channel.
        return "://" not in text and _parsed(tools.rattler().MatchSpec, text).name is not None
    except ValueError:
        return False


def _version(value: Any) -> str:
    try:
        _parsed(tools.rattler().Version, value)
    except ValueError:
        return "a version"
    return ""


def _parsed(parse: Callable[[Any], Any], value: Any) -> Any:
    """What py-rattler makes of a value. Raises ValueError."""
    try:
        return parse(value)
    except Exception as error:  # py-rattler's have no common class
        raise ValueError(str(error)) from error


def _text_or_texts(value: Any) -> str:
    return "" if isinstance(value, str) else _texts(value)


def _hash(value: Any) -> str:
    return "" if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef") else "a sha256"


def _placeholder(value: Any) -> str:
    return "" if value is None or (value and not _text(value)) else "a path that stands for the environment's"


def _noarch_link(value: Any) -> str:
    """As a client acts on it, that makes the programs of a package for any platform."""
    if not isinstance(value, dict) or value.get("type") not in ("generic", "python"):
        return "a table whose type is generic or python"
    points = value.get("entry_points", [])
    if _texts(points) or not all(map(_ENTRY_POINT.fullmatch, points)):
        return "a table with entry points like 'program = module:function'"
    return ""


_EXPORTS = ("noarch", "strong", "strong_constrains", "weak", "weak_constrains")
# What each field has to be. Names, versions and builds are those of the file, whose characters are looked at there.
_FIELDS: dict[str, dict[str, _Check]] = {
    "index": {
        "name": _text,
        "version": _version,
        "build": _text,
        "build_number": _number(_LARGEST_NUMBER),
        "depends": _requirements,
        "constrains": _requirements,
        "subdir": _text,
        "timestamp": _or_none(_number(_LAST_DATE)),
        "license": _or_none(_text),
        "license_family": _or_none(_text),
        "noarch": _one_of(None, False, True, "generic", "python"),
        "arch": _or_none(_text),
        "platform": _or_none(_text),
        "features": _or_none(_text),
        "track_features": _or_none(_text_or_texts),
    },
    "about": dict.fromkeys(
        ("description", "dev_url", "doc_url", "home", "license", "source_url", "summary"), _any_text
    ),
    "run_exports": dict.fromkeys(_EXPORTS, _requirements),
    "link": {"noarch": _or_none(_noarch_link), "package_metadata_version": _number(_LARGEST_NUMBER)},
    "paths": {"paths_version": _one_of(1)},
}
_ROW: dict[str, _Check] = {
    "path_type": _one_of("hardlink", "softlink", "directory"),
    "sha256": _or_none(_hash),
    "sha256_in_prefix": _or_none(_hash),
    "size_in_bytes": _or_none(_number(_LARGEST_NUMBER)),
    "prefix_placeholder": _placeholder,
    "file_mode": _one_of(None, "text", "binary"),
    "no_link": _one_of(None, False, True),
}
