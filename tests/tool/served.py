"""Small wheels, and folders of them as web servers show them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import synthetic
from synthetic import Member

JSON = "application/vnd.pypi.simple.v1+json"


def wheel(
    folder: Path,
    package: str = "torch",
    version: str = "2.13.0+cpu.lms1",
    *,
    tags: str = "py3-none-any",
    requires: Sequence[str] = (),
    headers: Sequence[str] = (),
    stated: str = "",
    files: Mapping[str, Member] | None = None,
) -> Path:
    """Writes a wheel whose module has its version; `stated` is what METADATA says in place of that."""
    folder.mkdir(parents=True, exist_ok=True)
    dist_info = f"{package}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {stated or version}", *headers]
    lines += [f"Requires-Dist: {text}" for text in requires]
    members = {
        f"{package}/__init__.py": Member(f"__version__ = {version!r}\n".encode()),
        **(files or {}),
        f"{dist_info}/METADATA": Member("\n".join([*lines, "", ""]).encode()),
        f"{dist_info}/WHEEL": Member(f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n".encode()),
    }
    return synthetic.write_wheel(folder / f"{package}-{version}-{tags}.whl", members)


@dataclass
class Server:
    """A web server that shows a folder."""

    address: str
    asked: list[str] = field(default_factory=list)  # the paths, and the kind of what was answered


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: object, asked: list[str], as_json: bool, **options: object) -> None:
        self._asked, self._as_json = asked, as_json
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self._as_json and self.path.endswith("/") and JSON in self.headers["Accept"]:
            self.path += "index.json"
        super().do_GET()

    def guess_type(self, path: object) -> str:
        return JSON if self._as_json and str(path).endswith("/index.json") else super().guess_type(str(path))

    def log_request(self, code: object = "-", size: object = "-") -> None:
        self._asked.append(f"{self.path} {int(code)}")  # type: ignore[call-overload]

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving(folder: Path, *, as_json: bool = False) -> Iterator[Server]:
    """Shows the folder as any web server does, or `as_json`, as those do that choose by what is accepted."""
    asked: list[str] = []
    handler = functools.partial(_Handler, directory=str(folder), asked=asked, as_json=as_json)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{server.server_port}", asked)
        finally:
            server.shutdown()
            thread.join()
