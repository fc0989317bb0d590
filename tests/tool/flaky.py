"""A server whose network goes wrong as often as it is told, and a resolver that does."""

from __future__ import annotations

import re
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class FlakyServer(ThreadingHTTPServer):
    """A server of one file, whole and in parts, at every address that does not end with a slash.

    `troubles` says what goes wrong with the next requests, one word each: a status, "reset", "cut short", "moved on" (the
    file is another from now on) or "fine". `seen` has what was asked for: the Range and If-Range of each request.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.data = data
        self.tag = '"first"'
        self.troubles: list[str] = []
        self.seen: list[tuple[str, str]] = []
        self.page = b""  # the list of files, at addresses that end with a slash
        self.wait = ""  # what a busy answer says in Retry-After

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """The client hangs up when it has seen enough."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Answer(BaseHTTPRequestHandler):
    server: FlakyServer

    def do_GET(self) -> None:
        server = self.server
        if self.path.endswith("/"):
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.send_header("Content-Length", str(len(server.page)))
            self.end_headers()
            self.wfile.write(server.page)
            return
        trouble = server.troubles.pop(0) if server.troubles else "fine"
        asked, condition = self.headers.get("Range", ""), self.headers.get("If-Range", "")
        server.seen.append((asked, condition))
        if trouble == "reset":
            # With no time to linger, closing sends a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if trouble.isdigit():
            self.send_response(int(trouble))
            if server.wait:
                self.send_header("Retry-After", server.wait)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if trouble == "moved on":
            server.data, server.tag = bytes(reversed(server.data)), '"second"'
        self._send(asked if condition in ("", server.tag) else "", trouble == "cut short")

    def _send(self, asked: str, cut_short: bool) -> None:
        data = self.server.data
        begin, end = 0, len(data)
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", asked):
            begin = int(found[1])
            end = min(end, int(found[2]) + 1) if found[2] else end
            if begin >= end:
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - begin))
        if self.server.tag:
            self.send_header("ETag", self.server.tag)
        self.end_headers()
        self.wfile.write(data[begin : begin + (end - begin) // 2 if cut_short else end])

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving(data: bytes) -> Iterator[FlakyServer]:
    with FlakyServer(data) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def break_resolver(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Names do not resolve the next `times` times."""
    resolve = socket.getaddrinfo
    left = [times]

    def broken(*words: object, **options: object) -> object:
        if left[0]:
            left[0] -= 1
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(*words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", broken)
