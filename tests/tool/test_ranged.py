"""Reading a few members of a wheel on a server, and finding where it is."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import synthetic
from lmsbuild.errors import DamagedWheel, DownloadFailed
from lmsbuild.fetch import http_requests, ranged
from lmsbuild.graft import graft
from lmsbuild.wheel.wheel import WheelFile, file_sha256
from synthetic import Member
from workshop import Workshop

BIG = 8 << 20  # bytes

pytestmark = pytest.mark.usefixtures("pauses")


class Shelf(ThreadingHTTPServer):
    """A server of one file, in parts; what `spoil` says goes wrong, and `served` counts the bytes that were sent."""

    def __init__(self, file: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.data = file.read_bytes()
        self.spoil = ""
        self.served = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{synthetic.wheel_name().replace('+', '%2B')}"

    def handle_error(self, request: object, client_address: object) -> None:
        """The client hangs up when it has seen enough."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Answer(BaseHTTPRequestHandler):
    server: Shelf

    def do_GET(self) -> None:
        shelf = self.server
        first, last = (int(place) for place in re.findall(r"\d+", self.headers["Range"]))
        if shelf.spoil == "gone":
            self.send_error(404)
            return
        part = shelf.data if shelf.spoil == "whole" else shelf.data[first : last + 1]
        self.send_response(200 if shelf.spoil == "whole" else 206)
        if shelf.spoil != "whole":
            begin = first + 1 if shelf.spoil == "another part" else first
            self.send_header("Content-Range", f"bytes {begin}-{last}/{len(shelf.data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if shelf.spoil == "cut short":
            part = part[: len(part) // 2]
        self.wfile.write(part)
        shelf.served += len(part)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def shelf(workshop: Workshop, stand_in: dict[str, Member]) -> Iterator[Shelf]:
    padding = Member(bytes(range(256)) * 4 + b"\0" * BIG)
    with zipfile.ZipFile(synthetic.write_wheel(workshop.base, stand_in), "a", zipfile.ZIP_STORED) as wheel:
        wheel.writestr("torch/padding", padding.data)
    with Shelf(workshop.base) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _read(address: str, name: str) -> bytes:
    with ranged.open_address(address) as stream, WheelFile(Path(http_requests.file_name(address)), stream) as wheel:
        return wheel.read(name)


def test_members_are_read_without_the_rest(shelf: Shelf, stand_in: dict[str, Member]) -> None:
    for name in ("torch/__init__.py", "torch/lib/libc10.so"):
        assert _read(shelf.address, name) == stand_in[name].data
    assert shelf.served < BIG
    assert _read(shelf.address, "torch/padding")[1024:] == b"\0" * BIG


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("whole", "as a whole only"),
        ("another part", "another part"),
        ("cut short", "cannot read|another part"),
        ("gone", "404"),
    ],
)
def test_a_server_that_does_not_serve_parts_is_said(shelf: Shelf, spoil: str, message: str) -> None:
    shelf.spoil = spoil
    with pytest.raises(DownloadFailed, match=message):
        _read(shelf.address, "torch/__init__.py")


def test_a_server_that_fails_half_way_is_said(shelf: Shelf) -> None:
    with ranged.open_address(shelf.address) as stream, WheelFile(Path(synthetic.wheel_name()), stream) as wheel:
        shelf.spoil = "gone"
        with pytest.raises(DownloadFailed, match="404"):
            wheel.read("torch/__init__.py")


def test_a_server_that_is_not_there_is_said(shelf: Shelf) -> None:
    address = shelf.address
    shelf.server_close()
    with pytest.raises(DownloadFailed, match="cannot read torch-2"):
        ranged.open_address(address)


def test_a_damaged_member_is_found(shelf: Shelf) -> None:
    damaged = bytearray(shelf.data)
    place = damaged.find(b"\0" * 100_000)
    damaged[place + 50_000] = 1
    shelf.data = bytes(damaged)
    with pytest.raises(DamagedWheel, match="torch/padding"):
        _read(shelf.address, "torch/padding")


@pytest.fixture
def listed(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip is configured to look in; it holds the stand-in wheel, and another interpreter's."""
    folder = workshop.folder / "shop"
    folder.mkdir()
    shutil.copy(workshop.base, folder)
    shutil.copy(workshop.base, folder / synthetic.wheel_name(abi="cp39"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.parametrize("abi", [synthetic.ABI, "cp39"])
def test_a_wheel_is_located_where_pip_looks(listed: Path, abi: str) -> None:
    name = synthetic.wheel_name(abi=abi)
    address = ranged.locate("torch", [name])
    assert http_requests.file_name(address) == name
    with ranged.open_address(address) as stream:
        assert stream.read() == (listed / name).read_bytes()


def test_a_wheel_that_pip_does_not_list_is_said(listed: Path) -> None:
    with pytest.raises(DownloadFailed, match="pip lists no torch file"):
        ranged.locate("torch", [synthetic.wheel_name("2.12.0")])


@pytest.mark.parametrize("locate", ["parts", "whole", "unlisted"])
def test_the_edited_files_are_had_either_way(
    workshop: Workshop, listed: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, locate: str
) -> None:
    shutil.copy(workshop.base, listed)
    synthetic.write_sources(workshop.patches, {workshop.base.name: ""})
    if locate != "unlisted":
        found: Callable[..., str] = lambda *words: shelf.address
        monkeypatch.setattr(ranged, "locate", found)
        shelf.spoil = "" if locate == "parts" else "whole"
    originals = graft.originals(workshop.patches, workshop.tag, workshop.cache, None)
    assert originals == {"torch/__init__.py": synthetic.INIT, "torch/cuda/__init__.py": synthetic.CUDA_INIT}
    assert bool(list(workshop.cache.rglob("*.whl"))) is (locate == "whole")
    shelf.spoil = "gone"  # and now without any network
    shutil.rmtree(listed)
    assert graft.originals(workshop.patches, workshop.tag, workshop.cache, None) == originals


def test_an_edited_file_that_is_damaged_in_the_cache_is_fetched_again(workshop: Workshop, listed: Path) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: ""})
    originals = graft.originals(workshop.patches, workshop.tag, workshop.cache, None)
    kept = sorted((workshop.cache / "blobs").iterdir())
    assert [path.name for path in kept] == sorted(workshop.tag.blobs.values())
    kept[0].write_bytes(b"damaged")
    assert graft.originals(workshop.patches, workshop.tag, workshop.cache, None) == originals
    kept[1].unlink()
    assert graft.originals(workshop.patches, workshop.tag, workshop.cache, None) == originals


def test_hashes_are_those_that_the_registry_states(workshop: Workshop, listed: Path) -> None:
    names = {synthetic.wheel_name(), synthetic.wheel_name(abi="cp39")}
    digest = file_sha256(workshop.base)
    assert ranged.hashes("torch", lambda name: name in names) == dict.fromkeys(names, digest)
    assert ranged.hashes("torch", lambda name: False) == {}


class _Index(BaseHTTPRequestHandler):
    """A registry that lists one file, in the form that pip asks for."""

    text = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(("stated", "found"), [({"sha256": "ab" * 32}, "ab" * 32), ({}, ""), (None, "unreadable")])
def test_hashes_are_read_off_the_page_that_lists_the_files(
    monkeypatch: pytest.MonkeyPatch, stated: dict[str, str] | None, found: str
) -> None:
    name = synthetic.wheel_name("2.13.0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        file = {"filename": name, "url": f"http://127.0.0.1:{server.server_port}/{name}", "hashes": stated or {}}
        page = {"meta": {"api-version": "1.0"}, "name": "torch", "files": [file]}
        monkeypatch.setattr(_Index, "text", json.dumps(page))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            if stated is None:
                links = ranged.links("torch")
                monkeypatch.setattr(_Index, "text", "<html>")
                monkeypatch.setattr(ranged, "links", lambda package: links)
                with pytest.raises(DownloadFailed, match="states no hashes"):
                    ranged.hashes("torch", lambda wheel: True)
            else:
                assert ranged.hashes("torch", lambda wheel: True) == ({name: found} if found else {})
        finally:
            server.shutdown()
            thread.join()
