"""A file on a server, read by ranges: a few members of a large archive without the rest of it.

What comes this way is not covered by the hash of the whole file, so whoever reads it has to know a hash of each part, or
of the wheel's RECORD, which lists those of all members. The checksums in the archive are checked, but prove nothing.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import re
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lmsbuild import command
from lmsbuild.errors import DownloadFailed
from lmsbuild.wheel import file_sha256

_WINDOW = 1 << 20  # bytes asked for at once
_TIMEOUT = 60.0  # seconds without an answer
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_LINK = re.compile(r"((?:https?|file)://[^\s#]+\.whl)(?:#sha256=([0-9a-f]{64}))?(?: \(from ([^)\s]+)\))?")


class RangedFile(io.RawIOBase):
    """A file on a server, as a seekable file for reading. Not thread-safe. Every method may raise DownloadFailed."""

    def __init__(self, address: str) -> None:
        """Raises DownloadFailed when there is no such file or the server does not serve parts of it."""
        super().__init__()
        self._address = address
        self._context = ssl.create_default_context(cafile=_certificates())
        self._position = 0
        _, self._size = self._fetch(0, 1)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._position)
        if count <= 0:
            return 0
        data, _ = self._fetch(self._position, count)
        buffer[:count] = data
        self._position += count
        return count

    def _fetch(self, begin: int, count: int) -> tuple[bytes, int]:
        """The bytes from `begin` on, and the size of the whole file."""
        last = begin + count - 1
        request = urllib.request.Request(self._address, headers={"Range": f"bytes={begin}-{last}"})
        name = file_name(self._address)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT, context=self._context) as answer:
                given = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if answer.status != http.HTTPStatus.PARTIAL_CONTENT or given is None:
                    raise DownloadFailed(f"the server serves {name} as a whole only, not in parts")
                data = answer.read(count)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadFailed(f"cannot read {name} from the server: {error}") from error
        if (int(given[1]), int(given[2])) != (begin, last) or len(data) != count:
            raise DownloadFailed(f"the server answered with another part of {name} than was asked for")
        return data, int(given[3])


def open_address(address: str) -> BinaryIO:
    """The file at the address, seekable. Raises DownloadFailed when it cannot be read in parts."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path)).open("rb")
    return io.BufferedReader(RangedFile(address), _WINDOW)


@dataclass(frozen=True)
class Link:
    """A wheel where pip is configured to look."""

    address: str
    sha256: str  # as the link states it; empty: it does not
    page: str  # the page that has the link

    @property
    def name(self) -> str:
        return file_name(self.address)


def links(package: str) -> list[Link]:
    """The wheels of a package that pip sees, in its order, those for other interpreters too."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color", "-vv"]
    # At this verbosity pip prints the address of each file.
    listed = command.run([*words, "index", "versions", package])
    return [Link(*found) for found in _LINK.findall(f"{listed.text}\n{listed.error_text}")]


def locate(package: str, wanted: Collection[str], known: Sequence[Link] | None = None) -> str:
    """The address of the first wheel, in pip's order, that is named in `wanted`, from where pip is configured to look.

    Only the list of the package's files is read, or `known` taken instead. Raises DownloadFailed.
    """
    for link in links(package) if known is None else known:
        if link.name in wanted:
            return link.address
    raise DownloadFailed(
        f"pip lists no {package} file that the catalogue knows: check the network and `pip config list`"
    )


def hashes(package: str, wanted: Callable[[str], bool]) -> dict[str, str]:
    """The sha256 of the wheels whose names are wanted, by name, as the registry states it; of a local file, its own.

    A wheel whose hash is not stated is left out. Raises DownloadFailed, also when pip lists no file at all.
    """
    listed = links(package)
    if not listed:
        raise DownloadFailed(f"pip lists no file of {package}: check the network and `pip config list`")
    found: dict[str, str] = {}
    pages: dict[str, dict[str, str]] = {}
    for link in listed:
        if link.name in found or not wanted(link.name):
            continue
        digest, parts = link.sha256, urllib.parse.urlsplit(link.address)
        if parts.scheme == "file":
            digest = file_sha256(Path(urllib.request.url2pathname(parts.path)))
        elif not digest and link.page.startswith("http"):
            if link.page not in pages:
                pages[link.page] = _stated(link.page)
            digest = pages[link.page].get(link.name, "")
        if digest:
            found[link.name] = digest
    return found


def _stated(page: str) -> dict[str, str]:
    """The sha256 of the files that a page of a registry lists, by name, where it states them in the form of PEP 691."""
    request = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    context = ssl.create_default_context(cafile=_certificates())
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=context) as answer:
            table = json.load(answer)
            return {str(row["filename"]): str(row["hashes"].get("sha256", "")) for row in table["files"]}
    except (OSError, http.client.HTTPException) as error:
        raise DownloadFailed(f"cannot read the registry's list of files: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DownloadFailed("the registry's list of files states no hashes in a form that can be read") from error


def file_name(address: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(address).path.rsplit("/", 1)[-1])


@functools.cache
def _certificates() -> str | None:
    """The file of certificates that pip is configured to trust; None: the system's."""
    listed = command.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"])
    found = re.search(r"^\S*\bcert='(.+)'$", listed.text, re.MULTILINE)
    return found[1] if found else None
