"""The lock between runs, and the folder that the cache is in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmsbuild import paths
from lmsbuild.errors import OutputNotWritable
from lmsbuild.lock import locked

HOLDER = """\
import sys, time
from pathlib import Path
from lmsbuild.lock import locked
with locked(Path(sys.argv[1]), "waiting"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def _start(lock: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_run_says_that_it_waits_and_then_has_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / "lock"
    with _start(lock) as first:
        assert _read(first) == "held"
        with _start(lock) as second:
            assert second.stderr is not None
            assert second.stderr.readline().strip() == "waiting"
            assert first.communicate("\n") == ("", "")
            assert _read(second) == "held"
            assert second.communicate("\n") == ("", "")
        assert (first.returncode, second.returncode) == (0, 0)


def test_a_run_that_waits_can_be_interrupted(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock, "waiting"), _start(lock) as second:
        assert second.stderr is not None
        assert second.stderr.readline().strip() == "waiting"
        second.send_signal(signal.SIGINT)
        _, errors = second.communicate()
    assert "KeyboardInterrupt" in errors
    assert second.returncode == -signal.SIGINT


def test_the_lock_of_a_dead_run_is_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "lock"
    with _start(lock) as first:
        assert _read(first) == "held"
        first.kill()
    with locked(lock, "waiting"):
        assert lock.exists()
    assert "waiting" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder", "text"])
def test_a_lock_that_is_no_empty_file_is_refused(tmp_path: Path, kind: str) -> None:
    """What a link points to stays as it is, and nothing is waited for."""
    lock, target = tmp_path / "lock", tmp_path / "target"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    elif kind == "text":
        lock.write_text("precious")
    else:
        lock.symlink_to(target)
    if kind == "link":
        target.write_text("precious")
    with pytest.raises(OutputNotWritable, match="lock between runs: remove it"), locked(lock, "waiting"):
        pass
    assert target.exists() == (kind == "link")
    assert kind not in ("link", "text") or lock.read_text() == "precious"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"LMSBUILD_CACHE": "/chosen", "XDG_CACHE_HOME": "/other"}, "/chosen"),
        ({"XDG_CACHE_HOME": "/other"}, "/other/lmsbuild"),
        ({}, "/home/user/.cache/lmsbuild"),
    ],
)
def test_the_cache_is_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("LMSBUILD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/user", **variables}.items():
        monkeypatch.setenv(name, value)
    assert paths.cache_folder() == Path(folder)
