"""A file from a server, fetched in as many attempts as it takes, by this run or a later one, and checked by its hash.

Until it is complete it lies beside its place as `<sha256>.partial`, with `<sha256>.etag`: the server's name for the version
that it is a part of.
"""

from __future__ import annotations

import os
from pathlib import Path

import requests

from lmsbuild import report
from lmsbuild.errors import DownloadFailed, WrongHash
from lmsbuild.fetch import http_requests
from lmsbuild.wheel.wheel import file_sha256

CHUNK = 1 << 16  # bytes; what has come of one that is not complete is lost
_HEADWAY = 1 << 20  # bytes


def fetch(address: str, sha256: str, target: Path, partials: Path, show: report.Show) -> None:
    """Puts the file at `address` into `target`, a path on the file system of the folder `partials`, which keeps what is not
    complete. `show` gets how many bytes are there, and of how many.

    For one process at a time. Raises DownloadFailed, after which the next call goes on, WrongHash or OSError.
    """
    partial, tag = partials / f"{sha256}.partial", partials / f"{sha256}.etag"
    is_resumed = partial.exists()
    _complete(address, partial, tag, show)
    found = file_sha256(partial)
    if found != sha256 and is_resumed:
        # What an earlier run left may be the damaged part.
        _discard(partial, tag)
        _complete(address, partial, tag, show)
        found = file_sha256(partial)
    if found != sha256:
        _discard(partial, tag)
        raise WrongHash(
            f"{http_requests.file_name(address)} has the sha256 {found}, it should be {sha256}: it was damaged or "
            "replaced on the server; fetch it from a registry that you trust"
        )
    os.replace(partial, target)
    tag.unlink(missing_ok=True)


def _discard(partial: Path, tag: Path) -> None:
    partial.unlink()
    tag.unlink(missing_ok=True)


def _complete(address: str, partial: Path, tag: Path, show: report.Show) -> None:
    """Fetches what `partial` lacks."""

    def size() -> int:
        return partial.stat().st_size if partial.exists() else 0

    def headers() -> dict[str, str]:
        if not size():
            return {}
        # Another version, of which no part is wanted, comes as a whole.
        known = tag.read_text() if tag.exists() else ""
        return {"Range": f"bytes={size()}-", **({"If-Range": known} if known else {})}

    def read(answer: requests.Response) -> None:
        if answer.status_code == requests.codes.requested_range_not_satisfiable:
            return  # nothing is lacking, which the hash confirms
        begin = size()
        if answer.status_code != requests.codes.partial_content:
            begin = 0
            version = answer.headers.get("ETag", "")
            tag.write_text("" if version.startswith("W/") else version)  # a weak one does not vouch for bytes
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            name = http_requests.file_name(address)
            raise http_requests.Refused(f"the server answered with another part of {name} than was asked for")
        total = begin + int(answer.headers.get("Content-Length", 0))
        with partial.open("ab" if begin else "wb") as file:
            for chunk in answer.iter_content(CHUNK):
                file.write(chunk)
                begin += len(chunk)
                if total:
                    show(begin, total)

    with http_requests.Session() as session:
        while True:
            before = size()
            try:
                return http_requests.get(session, address, read, headers)
            except http_requests.Refused:
                raise
            except DownloadFailed:
                if size() - before < _HEADWAY:  # otherwise it goes on, if with many hiccups
                    raise
