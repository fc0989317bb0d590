"""A file on a server, read by ranges: a few members of a large archive without the rest of it.

What comes this way is not covered by the hash of the whole file, so its reader has to know a hash of each part, or
of the wheel's RECORD, which lists those of all members. The checksums in the archive are checked, but prove nothing.

remotezip does the same, but reads members off an open connection, so that an answer that ends early fails the run; takes
other bytes than it asked for; does not see that the file changed between two requests; and makes one request for each
member, where headers, neighbours in the archive, come by the thousand.
"""

from __future__ import annotations

import io
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import requests

from lmsbuild.errors import DownloadFailed
from lmsbuild.fetch import http_requests, pip_command
from lmsbuild.wheel.input_file import Positioned
from lmsbuild.wheel.wheel import file_sha256

_WINDOW = 1 << 20  # bytes asked for at once
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_LINK = re.compile(r"((?:https?|file)://[^\s#]+\.whl)(?:#sha256=([0-9a-f]{64}))?(?: \(from ([^)\s]+)\))?")


class RangedFile(Positioned):
    """A file on a server, as a seekable file for reading. Not thread-safe. Every method may raise DownloadFailed."""

    def __init__(self, address: str) -> None:
        """Raises DownloadFailed when there is no such file or the server does not serve parts of it."""
        super().__init__()
        self._address = address
        self._session = http_requests.Session()
        self._file: tuple[int, str] | None = None  # size and ETag: those of one version of the file
        self._size = 0
        try:
            self._fetch(0, 1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._session.close()
        super().close()

    def length(self) -> int:
        return self._size

    def read_at(self, offset: int, count: int) -> bytes:
        count = min(count, self._size - offset)
        return self._fetch(offset, count) if count > 0 else b""

    def _fetch(self, begin: int, count: int) -> bytes:
        """The bytes from `begin` on."""
        last = begin + count - 1
        name = http_requests.file_name(self._address)

        def read(answer: requests.Response) -> bytes:
            given = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status_code != requests.codes.partial_content or given is None:
                raise DownloadFailed(f"the server serves {name} as a whole only, not in parts")
            data = answer.content if (int(given[1]), int(given[2])) == (begin, last) else b""
            if len(data) != count:
                raise DownloadFailed(f"the server answered with another part of {name} than was asked for")
            version = int(given[3]), answer.headers.get("ETag", "")
            if self._file not in (None, version):
                raise DownloadFailed(f"{name} changed on the server while it was read")
            self._file = version
            self._size = version[0]
            return data

        return http_requests.get(self._session, self._address, read, headers=lambda: {"Range": f"bytes={begin}-{last}"})


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
        return http_requests.file_name(self.address)


def links(package: str) -> list[Link]:
    """The wheels of a package that pip sees, in its order, those for other interpreters too."""
    # At this verbosity pip prints the address of each file.
    listed = pip_command.run(["--no-color", "-vv", "index", "versions", package])
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

    def read(answer: requests.Response) -> dict[str, str]:
        return {
            str(row["filename"]): str(row["hashes"].get("sha256", "")) for row in json.loads(answer.content)["files"]
        }

    with http_requests.Session() as session:
        try:
            return http_requests.get(
                session, page, read, headers=lambda: {"Accept": "application/vnd.pypi.simple.v1+json"}
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DownloadFailed("the registry's list of files states no hashes in a form that can be read") from error
