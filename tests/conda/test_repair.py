"""`lmsbuild channel repair`: a channel that no client could read is good again, and nothing that was good is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import rattler

from bundles import attest, bundle, served
from lmsbuild import paths
from lmsbuild.channel import attestations, audit, channel
from lmsbuild.channel.repair import SET_ASIDE, repair
from lmsbuild.errors import BadChannel, OutputNotWritable
from lmsbuild.published import folder as published
from lmsbuild.published.folder import SEEN
from raw_packages import INDEX, NAME, build, file, link, tables
from stand_ins import SUBDIR, make
from test_channel import add_exports, contents

RECIPES = paths.recipes_folder()
GOOD = "small-1.0-0.conda"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A channel of two packages, one with attestations."""
    packages = [make(tmp_path), make(tmp_path, "other")]
    attest(packages[0], bundle(packages[0], "one"))
    channel.publish(tmp_path / "channel", packages)
    return tmp_path / "channel"


def change_index(folder: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    path = folder / SUBDIR / "repodata.json"
    table = json.loads(path.read_text())
    change(table["packages.conda"])
    path.write_text(json.dumps(table))


def check_repaired(folder: Path, before: dict[str, str]) -> None:
    """It is good; what the good channel had is as it was; a second repair does nothing."""
    assert audit.check(folder, RECIPES) == 2
    known = contents(folder)
    assert before.items() <= {**known, f"{SUBDIR}/lmsbuild-index.json": before[f"{SUBDIR}/lmsbuild-index.json"]}.items()
    assert repair(folder) == [] and contents(folder) == known
    rattler.RepoData.from_path(folder / SUBDIR / "repodata.json")


def test_a_good_channel_stays_as_it_is(folder: Path) -> None:
    check_repaired(folder, contents(folder))
    assert not (folder / SET_ASIDE).exists()


def test_nothing_is_set_aside_through_a_link(folder: Path, tmp_path: Path) -> None:
    (folder / SET_ASIDE).symlink_to(tmp_path)
    with pytest.raises(BadChannel, match="is a link"):
        repair(folder)


BAD = {
    "no number": build(described=tables([], json.dumps(INDEX).replace("0,", "NaN,"))),
    "a field": build(described=tables([], {**INDEX, "depends": [1]})),
    "a link": build([link("x", "/etc")]),
    "a name": build([file("../../../etc/x")]),
    "another platform": build(described=tables([], {**INDEX, "subdir": "linux-s390x"})),
    "truncated": build([file("x")])[:-40],
    "empty": b"",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
@pytest.mark.parametrize("indexed", [True, False])
def test_bad_packages_are_set_aside(folder: Path, data: bytes, indexed: bool) -> None:
    before, bad = contents(folder), folder / SUBDIR / f"{NAME}.conda"
    bad.write_bytes(data)
    (folder / SUBDIR / f"{NAME}.conda.sigs").write_text("its own")
    if indexed:
        change_index(
            folder, lambda rows: rows.update({bad.name: {**INDEX, "version": 1.0, "size": 1, "sha256": "0" * 64}})
        )
    done = repair(folder)
    assert done[0].startswith(f"{SUBDIR}/{bad.name} is set aside in {SET_ASIDE}/{SUBDIR}: ")
    assert (folder / SET_ASIDE / SUBDIR / bad.name).read_bytes() == data and not bad.exists()
    assert (folder / SET_ASIDE / SUBDIR / f"{bad.name}.sigs").read_text() == "its own"
    check_repaired(folder, before)
    assert served(folder, folder / SUBDIR / GOOD)


def test_nothing_in_the_folder_of_what_is_set_aside_is_written_over(folder: Path) -> None:
    for text in ("one", "two"):
        (folder / SUBDIR / f"{NAME}.conda").write_text(text)
        repair(folder)
    there = folder / SET_ASIDE / SUBDIR
    assert [(there / f"{NAME}.conda{end}").read_text() for end in ("", ".2")] == ["one", "two"]


def test_interrupted_before_anything_is_set_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index names only what is there and good, and the next run does the rest."""
    before, bad = contents(folder), folder / SUBDIR / f"{NAME}.conda"
    bad.write_bytes(b"")
    change_index(folder, lambda rows: rows.update({bad.name: {**INDEX, "size": 1, "sha256": "0" * 64}}))

    def stop(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            repair(folder)
    assert bad.exists() and bad.name not in channel.read_index(folder / SUBDIR)
    assert f"{bad.name} is set aside" in repair(folder)[0]
    check_repaired(folder, before)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_file(folder: Path, kind: str) -> None:
    before, odd = contents(folder), folder / SUBDIR / f"{NAME}.conda"
    make_odd = {"folder": os.mkdir, "pipe": os.mkfifo, "link": lambda path: os.symlink("none", path)}
    make_odd[kind](odd)
    assert f"{NAME}.conda is set aside" in repair(folder)[0]
    assert os.path.lexists(folder / SET_ASIDE / SUBDIR / odd.name)
    check_repaired(folder, before)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"packages.conda": []}', '{"x": NaN}', "", None])
def test_an_index_that_cannot_be_read(folder: Path, text: str | None) -> None:
    before, path = contents(folder), folder / SUBDIR / "repodata.json"
    path.unlink()
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    done = repair(folder)
    assert done[0].startswith(f"{SUBDIR}/repodata.json could not be read")
    assert f"{SUBDIR}/{GOOD} is in the index now" in done and f"{SUBDIR}/repodata.json is written anew" in done
    kept = folder / SET_ASIDE / SUBDIR / "repodata.json"
    assert kept.is_fifo() if text is None else kept.read_text() == text
    check_repaired(folder, before)


NAMES = ("channeldata.json", *(f"{SUBDIR}/{name}" for name in ("repodata.json.zst", "run_exports.json", SEEN)))


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_where_a_file_is_written(folder: Path, name: str) -> None:
    """Publishing names it, and a repair sets it aside."""
    before, path = contents(folder), folder / name
    path.unlink()
    (path / "kept").mkdir(parents=True)
    with pytest.raises(OutputNotWritable, match=re.escape(f"({path})")):
        channel.publish(folder, [])
    assert f"{path.name} is no file, and is set aside in {SET_ASIDE}" in " ".join(repair(folder))
    assert (folder / SET_ASIDE / name / "kept").is_dir()
    check_repaired(folder, before)


def test_a_folder_where_a_file_is_written_aside(folder: Path) -> None:
    before, path = contents(folder), published.aside(folder / SUBDIR / "repodata.json")
    path.mkdir()
    change_index(folder, lambda rows: rows.pop(GOOD))
    with pytest.raises(OutputNotWritable, match=path.name):
        channel.publish(folder, [])
    assert f"{path.name} is no file" in " ".join(repair(folder))
    check_repaired(folder, before)


EXPORTS = {"noarch": {}, "weak": [1]}


@pytest.mark.parametrize(
    "change", [{"run_exports": EXPORTS}, {"flags": {"x": True}}, {"about": {"summary": 1}}, {"stamp": "x"}]
)
def test_what_is_remembered_of_a_package_is_no_such_thing(folder: Path, change: dict[str, object]) -> None:
    """Then it is read out of the package again."""
    before, path = contents(folder), folder / SUBDIR / SEEN
    seen = json.loads(path.read_text())
    seen[GOOD] |= change
    path.write_text(json.dumps(seen))
    channel.publish(folder, [])
    assert contents(folder) == before and audit.check(folder, RECIPES) == 2


def test_what_is_remembered_of_a_package_is_not_so(folder: Path) -> None:
    """The check finds it, and says what mends it."""
    before, path = contents(folder), folder / SUBDIR / SEEN
    seen = json.loads(path.read_text())
    seen[GOOD]["run_exports"] = {"weak": ["evil"]}
    path.write_text(json.dumps(seen))
    channel.publish(folder, [])
    with pytest.raises(BadChannel, match="run_exports.json is not what the packages say: `lmsbuild channel repair`"):
        audit.check(folder, RECIPES)
    assert f"{SUBDIR}/run_exports.json is written anew" in repair(folder)
    check_repaired(folder, before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.update({"gone-1-0.conda": rows[GOOD]}), "gone-1-0.conda is no longer in the index"),
        (lambda rows: rows.update({GOOD: 1}), f"had a row for {GOOD} that is of no package"),
        (lambda rows: rows.update({"../x": rows[GOOD]}), "had a row for ../x that is of no package"),
        (lambda rows: rows[GOOD].update(depends=[1]), f"{GOOD} has the row in the index that its index.json says"),
        (lambda rows: rows[GOOD].update(version=1.0), f"{GOOD} has the row in the index that its index.json says"),
        (lambda rows: rows[GOOD].update(sha256="0" * 64), f"{GOOD} is not the file that was published, of sha256 000"),
        (lambda rows: rows.pop(GOOD), f"{GOOD} is in the index now"),
        (lambda rows: rows[GOOD].update({attestations.KEY: "0" * 64}), f"{GOOD} has no attestations in the index any"),
    ],
)
def test_rows_that_are_wrong(folder: Path, change: Callable[[dict[str, dict[str, object]]], object], said: str) -> None:
    before = contents(folder)
    change_index(folder, change)
    assert any(sentence.startswith(f"{SUBDIR}/") and said in sentence for sentence in repair(folder))
    check_repaired(folder, before)


def test_a_package_that_is_not_the_one_published(folder: Path, tmp_path: Path) -> None:
    """It is good by itself, and stays; the index as it was is kept, with the hash that users may have locked."""
    other = make(tmp_path / "new", files={"share/small.txt": b"other\n"})
    shutil.copyfile(other, folder / SUBDIR / GOOD)
    old = (folder / SUBDIR / "repodata.json").read_bytes()
    done = repair(folder)
    assert "is not the file that was published" in " ".join(done) and "sigs is set aside" in " ".join(done)
    assert (folder / SUBDIR / GOOD).read_bytes() == other.read_bytes()
    assert (folder / SET_ASIDE / SUBDIR / "repodata.json").read_bytes() == old
    assert audit.check(folder, RECIPES) == 2 and repair(folder) == []


@pytest.mark.parametrize("gone", [True, False])
def test_attestations_that_are_bad(folder: Path, gone: bool) -> None:
    """What the index names is there again."""
    before, beside = contents(folder), attestations.beside(folder / SUBDIR / GOOD)
    beside.unlink() if gone else beside.write_text("[]")
    repair(folder)
    assert gone or (folder / SET_ASIDE / SUBDIR / beside.name).read_text() == "[]"
    check_repaired(folder, before)


def test_one_package_in_both_formats(folder: Path, tmp_path: Path) -> None:
    """The one that the index names stays."""
    before = contents(folder)
    old = add_exports(make(tmp_path / "old"), {}, ".tar.bz2")
    shutil.copyfile(old, folder / SUBDIR / old.name)
    assert f"{old.name} is set aside" in repair(folder)[0]
    check_repaired(folder, before)


def test_a_package_that_cannot_be_read_is_not_set_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be good."""
    before = contents(folder)

    def refuse(*words: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("lmsbuild.conda.package_file.open_file", refuse)
        with pytest.raises(BadChannel, match="run as a user who may read it"):
            repair(folder)
    assert contents(folder) == before and not (folder / SET_ASIDE).exists()


def test_no_channel(tmp_path: Path) -> None:
    with pytest.raises(BadChannel, match="is no channel"):
        repair(tmp_path)


def test_the_command(folder: Path) -> None:
    """It says what it did, and ends with 0 when the channel is good, and with the check's code when it is not."""

    def run() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "lmsbuild", "channel", "repair", folder]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    (folder / SUBDIR / f"{NAME}.conda").write_bytes(b"")
    done, good = run(), f"{folder}: 2 packages, all as the index says"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, good) and f"{NAME}.conda is set aside" in done.stdout
    assert run().stdout.splitlines() == [good]
    needs = build(described=tables([], {**INDEX, "depends": ["small >=2"]}))
    (folder / SUBDIR / f"{NAME}.conda").write_bytes(needs)
    done = run()
    assert done.returncode == BadChannel.exit_code and "requires 'small >=2'" in done.stderr
