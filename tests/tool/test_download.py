"""Fetching base wheels: the cache, its hashes and its lock, and what pip is asked for."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
from lmsbuild import command
from lmsbuild.errors import DownloadFailed, WrongHash, WrongPlatform
from lmsbuild.fetch import download
from lmsbuild.graft import graft
from lmsbuild.wheel.target import Target, glibc_minor, target_for
from lmsbuild.wheel.wheel import file_sha256
from workshop import Workshop

pytestmark = pytest.mark.build  # runs pip


@pytest.fixture
def shop(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nowhere else; it holds the stand-in wheel."""
    folder = workshop.folder / "shop"
    folder.mkdir()
    shutil.copy(workshop.base, folder)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """The arguments of every `pip download` that runs."""
    seen: list[tuple[str, ...]] = []
    run = command.run

    def watched(arguments: tuple[str, ...], **options: object) -> command.Finished:
        if "download" in arguments:
            seen.append(tuple(arguments))
        return run(arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "run", watched)
    yield seen


def _fetch(workshop: Workshop, target: Target = synthetic.TARGET) -> Path:
    return download.fetch(workshop.tag, target, workshop.cache)


def test_a_wheel_is_fetched_once(workshop: Workshop, shop: Path, downloads: list[tuple[str, ...]]) -> None:
    first = _fetch(workshop)
    assert first.read_bytes() == workshop.base.read_bytes()
    assert _fetch(workshop) == first
    assert len(downloads) == 1


@pytest.mark.parametrize("damage", ["content", "truncated", "no sum", "wrong sum"])
def test_a_damaged_cache_entry_is_fetched_again(
    workshop: Workshop, shop: Path, downloads: list[tuple[str, ...]], damage: str
) -> None:
    first = _fetch(workshop)
    total = first.with_name(first.name + ".sha256")
    if damage == "content":
        first.write_bytes(first.read_bytes().replace(b"PK", b"KP"))
    elif damage == "truncated":
        first.write_bytes(first.read_bytes()[:1000])
    elif damage == "no sum":
        total.unlink()
    else:
        total.write_text("0" * 64)
    again = _fetch(workshop)
    assert again.read_bytes() == workshop.base.read_bytes()
    assert len(downloads) == 2


def test_a_damaged_cache_entry_cannot_vouch_for_itself(workshop: Workshop, shop: Path) -> None:
    """A changed wheel with a matching sum beside it is found out by the catalogue."""
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    first = _fetch(workshop)
    first.write_bytes(b"changed")
    first.with_name(first.name + ".sha256").write_text(file_sha256(first))
    assert _fetch(workshop).read_bytes() == workshop.base.read_bytes()


def test_a_download_that_is_not_the_official_file_is_refused(workshop: Workshop, shop: Path) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: "0" * 64})
    with pytest.raises(WrongHash, match=workshop.base.name.replace("+", r"\+")):
        _fetch(workshop)
    assert not list(workshop.cache.rglob("*.whl"))


@pytest.mark.parametrize(("label", "is_taken"), [("zzz", False), ("cpu2", False), ("cu128", True)])
def test_a_known_wheel_comes_before_others_of_its_version(
    workshop: Workshop,
    stand_in: dict[str, synthetic.Member],
    shop: Path,
    capsys: pytest.CaptureFixture[str],
    label: str,
    is_taken: bool,
) -> None:
    """To pip any label is higher than none, and who runs an index chooses it; those of upstream's own indices are expected."""
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    other = workshop.base.name.replace("+cpu", f"+{label}")
    relabelled = {
        name.replace("+cpu", f"+{label}"): replace(member, data=member.data.replace(b"+cpu", f"+{label}".encode()))
        for name, member in stand_in.items()
    }
    synthetic.write_wheel(shop / other, relabelled)
    assert _fetch(workshop).name == (other if is_taken else workshop.base.name)
    assert (f"{other} is not in the catalogue, so it is not taken" in capsys.readouterr().err) != is_taken


def test_a_build_that_pip_prefers_to_the_known_one_is_refused(
    workshop: Workshop, stand_in: dict[str, synthetic.Member], shop: Path
) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    package, version, rest = workshop.base.name.split("-", 2)
    synthetic.write_wheel(shop / f"{package}-{version}-7-{rest}", stand_in)
    with pytest.raises(DownloadFailed, match=r"pip took .*-7-.* instead of .*--base"):
        _fetch(workshop)


def test_a_wheel_that_is_not_known_is_said_to_be_so_from_the_cache_too(
    workshop: Workshop, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(graft, "compile_graft", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            graft.build(workshop.options(base_wheel=None))
        said = capsys.readouterr().err
        assert said.count(f"{workshop.base.name} is not in the catalogue") == 1
    assert "(cached)" in said


def test_nothing_to_fetch_says_what_to_do(workshop: Workshop, shop: Path) -> None:
    (shop / workshop.base.name).unlink()
    with pytest.raises(DownloadFailed, match="(?s)No matching distribution.*--base"):
        _fetch(workshop)
    assert [path.name for path in workshop.cache.iterdir() if path.suffix != ".lock"] == []


def test_other_configuration_of_pip_is_another_entry(
    workshop: Workshop, shop: Path, downloads: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _fetch(workshop)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{shop} {workshop.folder}")
    assert _fetch(workshop) != first
    assert len(downloads) == 2


def test_runs_at_once_download_once(workshop: Workshop, shop: Path, downloads: list[tuple[str, ...]]) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(_fetch(workshop))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(downloads) == 1
    assert found[0].read_bytes() == workshop.base.read_bytes()


def test_what_a_killed_run_left_is_removed(workshop: Workshop, shop: Path) -> None:
    first = _fetch(workshop)
    left = first.parent.with_name(first.parent.name + ".download-dead")
    left.mkdir()
    (left / "half.whl").write_bytes(b"PK")
    shutil.rmtree(first.parent)
    _fetch(workshop)
    assert not left.exists()


def test_another_interpreter_is_fetched_for(
    workshop: Workshop, shop: Path, downloads: list[tuple[str, ...]], stand_in: dict[str, synthetic.Member]
) -> None:
    other = "3.13" if synthetic.TARGET.python != "3.13" else "3.12"
    target = target_for(other)
    name = synthetic.wheel_name(abi=target.interpreter)
    synthetic.write_wheel(shop / name, stand_in)
    assert _fetch(workshop, target).name == name
    assert _fetch(workshop).name == workshop.base.name
    assert len(downloads) == 2


def test_pip_is_asked_for_a_wheel_of_the_target() -> None:
    words = replace(synthetic.TARGET, python="3.13t", is_running=False).pip_arguments()
    assert words[:6] == ["--implementation", "cp", "--python-version", "3.13", "--abi", "cp313t"]
    assert f"manylinux_2_{glibc_minor()}_{synthetic.TARGET.machine}" in words
    assert synthetic.TARGET.pip_arguments() == []


@pytest.mark.parametrize("python", ["3", "2.7", "three", "3.12.1", ""])
def test_what_is_no_interpreter_is_refused(python: str) -> None:
    with pytest.raises(WrongPlatform, match="3.12"):
        target_for(python)


def test_the_running_interpreter_is_the_default() -> None:
    target = target_for(None)
    assert target.is_running
    assert target.python.rstrip("t") == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert target_for(target.python) == target
