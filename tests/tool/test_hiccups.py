"""A network that fails for a moment fails no run; one that fails for good is said, soon; and what comes is what was asked for."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import synthetic
import upstream
from flaky import FlakyServer, break_resolver, serving
from lmsbuild import command
from lmsbuild.errors import DownloadFailed, SourceUnreachable, WrongHash
from lmsbuild.fetch import download, http_requests, pip_command, ranged, resumable
from lmsbuild.wheel.wheel import WheelFile, file_sha256
from workshop import Workshop

DATA = random.Random(7).randbytes(5 << 20)
SMALL = DATA[: 64 << 10]  # of which every 8 KiB is a request
SHA256 = hashlib.sha256(DATA).hexdigest()
TROUBLES = ["reset", "cut short", "429", "500", "502", "503", "504"]
HALF = len(DATA) // 2
LONGEST = 60.0  # seconds that waits may take in all


@pytest.fixture
def server(pauses: list[float]) -> Iterator[FlakyServer]:
    with serving(DATA) as made:
        yield made


def _read(server: FlakyServer) -> bytes:
    server.data = SMALL
    with ranged.open_address(f"{server.root}/file") as file:
        return file.read()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_request_for_a_part_outlives_a_hiccup(server: FlakyServer, pauses: list[float], trouble: str) -> None:
    server.troubles = [trouble, "fine", trouble, trouble, trouble, trouble, trouble]
    assert _read(server) == SMALL
    assert pauses == [0, 0, 2, 4, 8, 10]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_network_that_stays_bad_is_said_soon(server: FlakyServer, pauses: list[float], trouble: str) -> None:
    server.troubles = [trouble] * 100
    with pytest.raises(DownloadFailed, match="cannot read file from the server: .*, 6 times: check the network"):
        _read(server)
    assert len(server.seen) == 6
    assert sum(pauses) <= LONGEST


def test_a_name_that_does_not_resolve_at_first(
    server: FlakyServer, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_resolver(monkeypatch, 1)
    assert _read(server) == SMALL
    assert len(pauses) == 1
    break_resolver(monkeypatch, 100)
    with pytest.raises(DownloadFailed, match="Temporary failure in name resolution, 6 times"):
        _read(server)


def test_a_server_that_refuses_connections(pauses: list[float]) -> None:
    with serving(DATA) as server:
        address = f"{server.root}/file"
    with pytest.raises(DownloadFailed, match="Connection refused, 6 times"):
        ranged.open_address(address)
    assert len(pauses) == 5


def test_a_busy_server_is_waited_for_as_it_asks(server: FlakyServer, pauses: list[float]) -> None:
    server.troubles, server.wait = ["429", "503"], "7"
    assert _read(server) == SMALL
    assert pauses == [7, 7]


def test_a_server_that_asks_for_an_hour_is_not_waited_for(server: FlakyServer, pauses: list[float]) -> None:
    server.troubles, server.wait = ["503"], "3600"
    with pytest.raises(DownloadFailed, match="503 .*; it asks to try again in 3600 seconds"):
        _read(server)
    assert pauses == []


def test_a_wait_that_cannot_be_read_is_as_none(server: FlakyServer, pauses: list[float]) -> None:
    server.troubles, server.wait = ["503", "503"], "soon"
    assert _read(server) == SMALL
    assert pauses == [0, 2]


@pytest.mark.parametrize("address", ["http://[::1/x.whl", "http://a..b/x.whl", "http://a:99999/x.whl", "http:///x.whl"])
def test_what_is_no_address_is_refused(pauses: list[float], address: str) -> None:
    with http_requests.Session() as session, pytest.raises(http_requests.Refused, match="cannot read"):
        http_requests.get(session, address, lambda answer: answer)
    assert pauses == []


@pytest.mark.parametrize("status", ["401", "403", "404", "410"])
def test_an_answer_that_is_final_is_not_asked_for_again(server: FlakyServer, pauses: list[float], status: str) -> None:
    server.troubles = [status]
    with pytest.raises(http_requests.Refused, match=status):
        _read(server)
    assert pauses == []


def test_a_file_that_changes_between_its_parts_is_refused(server: FlakyServer) -> None:
    server.troubles = ["fine", "fine", "moved on"]
    with pytest.raises(DownloadFailed, match="file changed on the server while it was read"):
        _read(server)


@pytest.mark.parametrize(
    ("trouble", "tag"),
    [
        *((trouble, '"strong"') for trouble in TROUBLES),
        *(("503", tag) for tag in ('W/"weak"', "")),
        *(
            pytest.param(trouble, tag, marks=pytest.mark.release)
            for trouble in TROUBLES
            for tag in ('W/"weak"', "")
            if trouble != "503"
        ),
    ],
)
def test_a_download_goes_on_where_it_stopped(server: FlakyServer, tmp_path: Path, trouble: str, tag: str) -> None:
    server.tag = tag
    server.troubles = ["cut short", trouble]
    _fetch(server, tmp_path)
    first, *later = server.seen
    assert first == ("", "")
    assert later[0][0] == f"bytes={HALF}-"
    assert {condition for _, condition in later} == {tag if tag.startswith('"') else ""}


def test_a_later_run_goes_on_where_the_network_failed(server: FlakyServer, tmp_path: Path, pauses: list[float]) -> None:
    server.troubles = ["cut short", *["503"] * 100]
    with pytest.raises(DownloadFailed, match="503"):
        _fetch(server, tmp_path)
    assert sum(pauses) <= LONGEST
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{SHA256}.etag", f"{SHA256}.partial"]
    server.troubles, server.seen = [], []
    _fetch(server, tmp_path)
    assert server.seen == [(f"bytes={HALF}-", '"first"')]


def test_a_bad_network_that_makes_headway_is_put_up_with(server: FlakyServer, tmp_path: Path) -> None:
    server.troubles = ["cut short", *["503"] * 5, "cut short", *["reset"] * 5]
    _fetch(server, tmp_path)


@pytest.mark.parametrize("left", [b"\0" * 1000, DATA + b"more", DATA])
def test_a_part_that_an_earlier_run_left(server: FlakyServer, tmp_path: Path, left: bytes) -> None:
    """A damaged one, one that is too long, and a whole one."""
    (tmp_path / f"{SHA256}.partial").write_bytes(left)
    _fetch(server, tmp_path)
    assert [asked for asked, _ in server.seen] == [f"bytes={len(left)}-", *([""] if left != DATA else [])]


def test_a_file_that_changed_since_the_last_run_is_refused(server: FlakyServer, tmp_path: Path) -> None:
    server.troubles = ["cut short", "404"]
    with pytest.raises(http_requests.Refused, match="404"):
        _fetch(server, tmp_path)
    server.troubles = ["moved on"]
    with pytest.raises(WrongHash, match=f"file has the sha256 .*, it should be {SHA256}"):
        _fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_refused(server: FlakyServer, tmp_path: Path) -> None:
    server.data = DATA[:-1] + b"?"
    with pytest.raises(WrongHash):
        _fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def _fetch(server: FlakyServer, folder: Path) -> None:
    shares: list[float] = []
    resumable.fetch(f"{server.root}/file", SHA256, folder / "whole", folder, lambda done, of: shares.append(done / of))
    assert (folder / "whole").read_bytes() == DATA
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert all(0 < share <= 1 for share in shares)


@pytest.fixture
def registry(workshop: Workshop, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyServer]:
    """A registry with the stand-in wheel, made larger, that pip is configured to look in."""
    with zipfile.ZipFile(workshop.base, "a", zipfile.ZIP_STORED) as wheel:
        wheel.writestr("torch/padding", DATA)
    with serving(workshop.base.read_bytes()) as server:
        name = workshop.base.name
        file = {"filename": name, "url": f"{server.root}/{name.replace('+', '%2B')}", "hashes": {}}
        server.page = json.dumps({"meta": {"api-version": "1.0"}, "name": "torch", "files": [file]}).encode()
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.root}/simple/")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
        for name in ("PIP_FIND_LINKS", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.mark.build
def test_a_wheel_that_the_catalogue_knows_is_fetched_in_pieces(workshop: Workshop, registry: FlakyServer) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    registry.troubles = ["cut short", *["503"] * 100]
    with pytest.raises(DownloadFailed, match="503"):
        download.fetch(workshop.tag, synthetic.TARGET, workshop.cache)
    assert not list(workshop.cache.rglob("*.whl"))
    registry.troubles, registry.seen = [], []
    wheel = download.fetch(workshop.tag, synthetic.TARGET, workshop.cache)
    assert wheel.read_bytes() == workshop.base.read_bytes()
    kept = workshop.base.stat().st_size // 2 // resumable.CHUNK * resumable.CHUNK
    assert registry.seen == [(f"bytes={kept}-", '"first"')]
    assert not [path for path in workshop.cache.iterdir() if path.suffix in (".partial", ".etag")]


@pytest.mark.build
def test_another_file_of_that_name_is_refused(workshop: Workshop, registry: FlakyServer) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: "0" * 64})
    with pytest.raises(WrongHash, match="the sha256"):
        download.fetch(workshop.tag, synthetic.TARGET, workshop.cache)
    assert not [path for path in workshop.cache.rglob("*") if path.suffix != ".lock"]


@pytest.mark.build
def test_what_the_server_refuses_is_left_to_pip(workshop: Workshop, registry: FlakyServer) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    registry.troubles = ["403"]
    wheel = download.fetch(workshop.tag, synthetic.TARGET, workshop.cache)
    assert wheel.read_bytes() == workshop.base.read_bytes()


@pytest.mark.build
@pytest.mark.parametrize("failures", [3, 4])
def test_pip_is_run_again_when_a_download_was_cut_short(
    workshop: Workshop, registry: FlakyServer, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The catalogue does not know the wheel, so that pip fetches it."""
    synthetic.write_sources(workshop.patches, {synthetic.wheel_name(abi="cp39"): "0" * 64})
    registry.troubles = ["cut short"] * failures
    if failures < 4:
        wheel = download.fetch(workshop.tag, synthetic.TARGET, workshop.cache)
        assert wheel.read_bytes() == workshop.base.read_bytes()
    else:
        with pytest.raises(DownloadFailed, match="pip found no wheel of torch"):
            download.fetch(workshop.tag, synthetic.TARGET, workshop.cache)
        assert not list(workshop.cache.rglob("*.whl"))


def test_pip_waits_out_hiccups_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_RETRIES", "1")
    seen: list[dict[str, str]] = []
    finished = command.Finished(("pip",), 0, b"", b"")
    monkeypatch.setattr(command, "run", lambda words, environment, on_line: seen.append(environment) or finished)
    pip_command.run(["config", "list"])
    monkeypatch.delenv("PIP_RETRIES")
    pip_command.run(["config", "list"])
    assert [environment["PIP_RETRIES"] for environment in seen] == ["1", "7"]


@pytest.mark.build
def test_members_are_read_over_a_bad_network(workshop: Workshop, registry: FlakyServer) -> None:
    registry.troubles = ["reset", "503", "fine", "cut short", "500", "429", "reset"]
    name = workshop.base.name
    with ranged.open_address(ranged.locate("torch", [name])) as stream, WheelFile(Path(name), stream) as wheel:
        assert wheel.read("torch/padding") == DATA


@pytest.mark.build
@pytest.mark.parametrize("failures", [3, 4])
def test_git_is_run_again_after_a_hiccup(workshop: Workshop, failures: int) -> None:
    """With a stand-in for git, which finds no host the first times."""
    there = upstream.make(workshop)
    program = workshop.folder / "programs/git"
    program.parent.mkdir()
    marks = workshop.folder / "marks"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *" fetch "*) echo >> "{marks}"; if [ "$(wc -l < "{marks}")" -le {failures} ]; then\n'
        "  echo \"fatal: unable to access 'there': Could not resolve host: there\" >&2; exit 128\n"
        f'fi ;; esac\nexec "{shutil.which("git")}" "$@"\n'
    )
    program.chmod(0o755)
    environment = {**there.environment, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = there.run("source", upstream.TAG, workshop.folder / "tree", environment=environment)
    assert done.returncode == (0 if failures < 4 else SourceUnreachable.exit_code), done.stderr
    assert done.stderr.count("Could not resolve host; trying again") == 3
    assert len(marks.read_text().splitlines()) == 4
