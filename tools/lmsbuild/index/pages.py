"""What pip and uv read: the pages of the simple repository API, as HTML (PEP 503) and as JSON (PEP 691).

Both say the same: file, sha256, the Python that is required (PEP 503), the hash of the METADATA beside the file (PEP
658, and in HTML under its older name for pip before 23.2, which JSON cannot have: PEP 714), in JSON also sizes and
versions (PEP 700). Addresses are relative, so that the folder works wherever it is shown, also as file://. The same
rows give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from packaging.utils import parse_wheel_filename

MARK = b"pypi:repository-version"  # what tells an index's page from others
_VERSION = "1.1"  # of the interface


@dataclass(frozen=True)
class Row:
    """What the index says of a wheel."""

    file: str
    sha256: str
    size: int  # bytes
    metadata: str  # sha256 of METADATA
    requires_python: str = ""

    @property
    def _url(self) -> str:
        return f"../{quote(self.file)}"

    def html(self) -> str:
        requires = f' data-requires-python="{escape(self.requires_python)}"' if self.requires_python else ""
        metadata = "".join(f' data-{name}-metadata="sha256={self.metadata}"' for name in ("core", "dist-info"))
        link = f"{escape(self._url)}#sha256={self.sha256}"
        return f'<a href="{link}"{requires}{metadata}>{escape(self.file)}</a>'

    def json(self) -> dict[str, Any]:
        return {
            "filename": self.file,
            "url": self._url,
            "hashes": {"sha256": self.sha256},
            "size": self.size,
            "core-metadata": {"sha256": self.metadata},
            **({"requires-python": self.requires_python} if self.requires_python else {}),
        }


def project(name: str, rows: Iterable[Row]) -> dict[str, bytes]:
    """A project's pages, by file name."""
    ordered = sorted(rows, key=lambda row: (parse_wheel_filename(row.file)[1], row.file))
    versions = dict.fromkeys(str(parse_wheel_filename(row.file)[1]) for row in ordered)
    table = {"name": name, "versions": list(versions), "files": [row.json() for row in ordered]}
    return {"index.json": _json(table), "index.html": _html(name, (row.html() for row in ordered))}


def root(projects: Iterable[str]) -> dict[str, bytes]:
    """The pages that list the projects, by file name."""
    names = sorted(projects)
    links = (f'<a href="{name}/">{name}</a>' for name in names)
    return {
        "index.json": _json({"projects": [{"name": name} for name in names]}),
        "index.html": _html("Simple index", links),
    }


def read_project(table: Mapping[str, Any]) -> list[Row]:
    """The rows of a page that `project` made. Raises LookupError, TypeError or AttributeError when it is another."""
    return [
        Row(
            file=str(file["filename"]),
            sha256=str(file["hashes"]["sha256"]),
            size=int(file["size"]),
            metadata=str(file["core-metadata"]["sha256"]),
            requires_python=str(file.get("requires-python", "")),
        )
        for file in table["files"]
    ]


def read_root(table: Mapping[str, Any]) -> list[str]:
    """The projects of a page that `root` made. Raises LookupError or TypeError when it is another."""
    return [str(row["name"]) for row in table["projects"]]


def _json(table: dict[str, Any]) -> bytes:
    return (json.dumps({"meta": {"api-version": _VERSION}, **table}, indent=1) + "\n").encode()


def _html(title: str, links: Iterable[str]) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        "<html>",
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="{MARK.decode()}" content="{_VERSION}">',
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        *(f"{link}<br>" for link in links),
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(lines).encode()
