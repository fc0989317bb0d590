"""The forms of the tables in patches/catalogue and recipes: what each key of a file may be.

A form is a type, a Text, a list with the form of every entry, or a table of forms by key. A key that ends in "?" may be left out;
one that is a Text stands for all such keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.errors import BadSources


@dataclass(frozen=True)
class Text:
    """A text that is not just any."""

    what: str  # as a sentence calls it
    fits: Callable[[str], object]  # something true for one that is


Form = type | Text | list[Any] | Mapping[Any, Any]


def _compiles(pattern: str) -> bool:
    try:
        return re.compile(pattern.encode()).groups > 0
    except re.error:
        return False


ANY = Text("a name", bool)
TAG = Text("a tag such as v2.13.0", re.compile(r"v[0-9]{1,9}(\.[0-9]{1,9})+").fullmatch)
_GENERATION = Text("a release such as 2.13", re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*").fullmatch)
_PATTERN = Text("a regular expression with a group", _compiles)
_SHA256 = Text("a sha256", re.compile(r"[0-9a-f]{64}").fullmatch)
_PYTHON = Text("a version of Python such as 3.11", re.compile(r"3\.[0-9]{1,4}t?").fullmatch)
_WHEEL = Text("the name of a wheel", re.compile(r"[^-]+(-[^-]+){4,5}\.whl").fullmatch)
_LISTS = ("needs", "requires", "framework", "headers", "without", "beside", "unused", "texts")
_STATEMENT = {"files": [str], "pattern": _PATTERN}

FORMS: dict[str, Mapping[Any, Any]] = {
    "tags.toml": {
        "package": str,
        "variants?": [str],
        "tag?": [
            {
                "name": TAG,
                "commit": str,
                "version": str,
                "cuda?": str,
                "abi": str,
                "standard": str,
                "generation": _GENERATION,
                "supports": [str],
                "trained?": str,
                "blobs": {ANY: str},
                "records?": {_WHEEL: str},
                "wheels": {_WHEEL: str},
            }
        ],
    },
    "series.toml": {
        "pager_folder": str,
        "python_folder": str,
        "commit": [{"subject": str, "body": str, "paths": [str]}],
        "hook": {"name": str, "subject": str, "body": str},
        "generation": [
            {
                "name": _GENERATION,
                "has": {ANY: str},
                "link?": {ANY: [str]},
                "rename?": {ANY: str},
                "define?": [str],
                "standard?": str,
                "headers_of?": str,
                "headers?": {ANY: str},
            }
        ],
        "only?": [{"path": str, "generations": [str]}],
        "wheel": {"commit": _STATEMENT, "cuda": _STATEMENT, "standard?": _STATEMENT},
        "graft": {
            "python": int,
            "label": str,
            "source_root": str,
            "include": [str],
            "abi_library": str,
            "cuda_library?": str,
            "version_file?": str,
            "install": {ANY: str},
            "left_out?": [str],
            "messages?": [str],
            "export?": [{"modules": [str], "source": str, "names": [str]}],
            "library": [
                {
                    "path": str,
                    "sources": [str],
                    "together?": [str],
                    "link": [str],
                    "requires?": str,
                    "cuda?": bool,
                    "decorator?": str,
                    "cuda_sources?": [str],
                    "cuda_define?": [str],
                }
            ],
        },
    },
    "edits.toml": {
        "edit": [
            {
                "path": str,
                "within?": str,
                "anchor": str,
                "before?": str,
                "after?": str,
                "since?": TAG,
                "until?": TAG,
            }
        ]
    },
    "source.toml": {
        "repository": str,
        "folders": [str],
        "debian?": {
            ANY: {
                "package": str,
                "suite": str,
                "file": str,
                "sha256": _SHA256,
                "packaging?": {"file": str, "sha256": _SHA256, "without": [str]},
            }
        },
    },
    "full.toml": {
        "programs": [str],
        "modules": [str],
        "disk": int,
        "memory": int,
        "reads": [str],
        "pinned?": {ANY: str},
        "graft?": bool,
        "command": [{"words": [str], "leaves?": str, "since?": TAG, "until?": TAG}],
        "environment": [{"name": str, "value": str, "since?": TAG, "until?": TAG}],
        "debian?": {"packages": [str], "first": [str], "environment": {ANY: str}},
    },
    "debian.toml": {
        "build": [
            {
                "tag": TAG,
                "machine": str,
                "python": _PYTHON,
                "suite": str,
                "architecture": str,
                "license": str,
                **{key: [str] for key in _LISTS},
            }
        ]
    },
    "cuda.toml": {ANY: {"headers?": str, _WHEEL: str}},
    "names.toml": {ANY: {"version": str, "conda?": str, "extras?": {ANY: str}}},
    "requires.toml": {ANY: [{"requires": str, "since?": TAG, "until?": TAG}]},
    "platforms.toml": {ANY: {"subdir": str, "elf": str, "compiler": str, "package": str, "page": int}},
}


def check(path: Path, table: Mapping[str, Any]) -> None:
    """Raises BadSources, with the key, when the file's table is not of the form that files of its name have, if there is one."""
    if form := FORMS.get(path.name):
        _check(str(path), "", form, table)


def _check(file: str, key: str, form: Form, value: object) -> None:
    if isinstance(form, Mapping) and isinstance(value, Mapping):
        _check_table(file, key, form, value)
    elif isinstance(form, list) and isinstance(value, list):
        for number, entry in enumerate(value, start=1):
            _check(file, f"{key} number {number}", form[0], entry)
    elif not _fits(form, value):
        raise BadSources(f"{file}: {_shown(value)} is not {_named(form)}, which {key} has to be")


def _check_table(file: str, key: str, form: Mapping[Any, Any], table: Mapping[str, Any]) -> None:
    def inner(name: str) -> str:
        return f"{name} of {key}" if key else name

    named = {name.removesuffix("?"): own for name, own in form.items() if isinstance(name, str)}
    if missing := [name for name in named if name in form and name not in table]:
        raise BadSources(f"{file} has no {inner(missing[0])}: add it, which is {_named(named[missing[0]])}")
    others = [(name, own) for name, own in form.items() if isinstance(name, Text)]
    for name, value in table.items():
        own = named.get(name) or next((own for other, own in others if _fits(other, name)), None)
        if own is None:
            known = ", ".join([*sorted(named), *(other.what for other, _ in others)])
            raise BadSources(f"{file} has {inner(repr(name))}, which means nothing there: it may have {known}")
        _check(file, inner(name), own, value)


def _fits(form: Form, value: object) -> bool:
    if isinstance(form, Text):
        return isinstance(value, str) and bool(form.fits(value))
    return isinstance(form, type) and type(value) is form


def _named(form: Form) -> str:
    if isinstance(form, Text):
        return form.what
    if isinstance(form, type):
        return {str: "a text", int: "a whole number", bool: "true or false"}[form]
    return "a list" if isinstance(form, list) else "a table"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
