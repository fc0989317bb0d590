"""Attestations beside the packages of a channel: taken up, named by the index, never lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import rattler

from bundles import attest, bundle, served
from lmsbuild import paths
from lmsbuild.channel import attestations, audit, channel
from lmsbuild.errors import BadAttestation, BadChannel
from stand_ins import SUBDIR, make
from test_channel import contents

RECIPES = paths.recipes_folder()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "channel"


def test_they_are_published_with_the_package(folder: Path, package: Path) -> None:
    attest(package, bundle(package, "one"))
    channel.publish(folder, [package])
    assert served(folder, package) == [bundle(package, "one")]
    assert audit.check(folder, RECIPES) == 1
    before = contents(folder)
    channel.publish(folder, [package])
    assert contents(folder) == before
    named = channel.read_index(folder / SUBDIR)[package.name][attestations.KEY]
    table = rattler.RepoData.from_path(folder / SUBDIR / "repodata.json")
    assert [record.attestations_sha256.hex() for record in table.into_repo_data(rattler.Channel("x"))] == [named]


@pytest.mark.parametrize("in_channel", [True, False])
def test_more_are_added_at_the_end_and_none_is_lost(folder: Path, package: Path, in_channel: bool) -> None:
    """Those of the first index stay where it says that they are."""
    channel.publish(folder, [package])
    one, two, three = (bundle(package, who) for who in ("one", "two", "three"))
    place = folder / SUBDIR / package.name if in_channel else package
    attest(place, two, one)
    channel.publish(folder, [] if in_channel else [package])
    first = contents(folder)
    attest(place, three, two)
    channel.publish(folder, [] if in_channel else [package])
    assert served(folder, package) == [two, one, three]
    kept = {name: digest for name, digest in first.items() if ".sigs." in name}
    assert kept and kept.items() <= contents(folder).items()
    assert audit.check(folder, RECIPES) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dsseEnvelope": {"payload": "e30="}}', "[1]"])
def test_what_is_none_is_refused(folder: Path, package: Path, text: str) -> None:
    channel.publish(folder, [make(package.parent, "other")])
    before = contents(folder)
    attestations.beside(package).write_text(text)
    with pytest.raises(BadAttestation):
        channel.publish(folder, [package])
    assert contents(folder) == before


def test_that_of_another_package_is_refused(folder: Path, package: Path) -> None:
    attest(package, bundle(package, "one"), bundle(make(package.parent, "other"), "one"))
    with pytest.raises(BadAttestation, match="of another file"):
        channel.publish(folder, [package])


def test_check_finds_what_was_changed(folder: Path, package: Path, tmp_path: Path) -> None:
    attest(package, bundle(package, "one"))
    channel.publish(folder, [package])
    named = channel.read_index(folder / SUBDIR)[package.name][attestations.KEY]
    for number, path in enumerate((attestations.beside(package), attestations.kept(package, named))):
        copy = Path(shutil.copytree(folder, tmp_path / f"copy-{number}"))
        (copy / SUBDIR / path.name).write_text(json.dumps([bundle(package, "another")]))
        with pytest.raises(BadChannel, match=f"attestations in {path.name} of sha256"):
            audit.check(copy, RECIPES)
        (copy / SUBDIR / path.name).unlink()
        with pytest.raises(BadChannel, match=path.name):
            audit.check(copy, RECIPES)
    other = make(folder / SUBDIR, "other")
    channel.publish(folder, [])
    attest(other, bundle(other, "one"))
    with pytest.raises(BadChannel, match="has attestations that the index does not name"):
        audit.check(folder, RECIPES)
