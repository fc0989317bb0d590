"""What the files of a channel's index say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from lmsbuild import paths
from lmsbuild.channel import audit, channel, index
from lmsbuild.errors import BadChannel, DamagedPackage
from stand_ins import SUBDIR, make
from test_channel import add_exports, contents

RECIPES = paths.recipes_folder()
PLAIN = index.facts({})


def part(*packages: tuple[str, str, list[str]], facts: Mapping[str, dict[str, object]] | None = None) -> index.Part:
    """Packages by name, version-build, and what they require."""
    records = {}
    for name, identity, depends in packages:
        version, _, build = identity.partition("-")
        records[f"{name}-{version}-{build or 0}.conda"] = {
            "name": name,
            "version": version,
            "build": build or "0",
            "build_number": int(build) if build.isdigit() else 0,
            "depends": depends,
            "subdir": SUBDIR,
        }
    return index.Part(SUBDIR, records, {file: (facts or {}).get(file, PLAIN) for file in records})


def current(*packages: tuple[str, str, list[str]]) -> set[str]:
    table = index.tables(part(*packages))["current_repodata.json"]
    return {file.removesuffix(".conda") for file in table["packages.conda"]}


def test_current_has_the_newest_version_in_all_its_builds() -> None:
    found = current(
        ("a", "1.9-x", []), ("a", "1.10-x", []), ("a", "1.10-y", []), ("a", "1.10rc1-x", []), ("b", "2", [])
    )
    assert found == {"a-1.10-x", "a-1.10-y", "b-2-0"}


def test_current_has_what_the_newest_requires() -> None:
    """And what that requires, in turn."""
    versions = [("b", version, ["c <2"]) for version in ("1", "2", "3", "4")]
    found = current(
        ("a", "1", ["B >=2,<4"]),
        *versions,
        ("c", "1", ["__glibc"]),
        ("c", "2", []),
        ("d", "1", ["elsewhere", "b ==4 0"]),
    )
    assert found == {"a-1-0", "b-3-0", "b-4-0", "c-1-0", "c-2-0", "d-1-0"}


def test_current_takes_requirements_in_every_form() -> None:
    found = current(("a", "1", ["b<2", "channel::c[version='<2']"]), *((name, v, []) for name in "bc" for v in "123"))
    assert found == {"a-1-0", "b-1-0", "b-3-0", "c-1-0", "c-3-0"}


def test_channeldata_has_one_row_for_each_name() -> None:
    def facts(summary: str, exports: dict[str, list[str]], **flags: bool) -> dict[str, object]:
        return {"about": {"summary": summary}, "flags": {**PLAIN["flags"], **flags}, "run_exports": exports}

    known = {
        "a-1.9-0.conda": facts("old", {"weak": ["a >=1.9"]}, text_prefix=True),
        "a-1.10-0.conda": facts("new", {"weak": ["a >=1.10"]}),
        "a-1.10-1.conda": facts("newest", {}),
    }
    described = part(("a", "1.9-0", []), ("a", "1.10-0", []), ("a", "1.10-1", []), facts=known)
    described.records["a-1.9-0.conda"]["timestamp"] = 1_800_000_000_999  # milliseconds, or seconds in old packages
    described.records["a-1.10-0.conda"]["timestamp"] = 1_700_000_000
    noarch = index.Part("noarch", {}, {})
    assert index.channeldata([noarch, described]) == {
        "channeldata_version": 1,
        "subdirs": sorted([SUBDIR, "noarch"]),
        "packages": {
            "a": {
                **PLAIN["flags"],
                "text_prefix": True,
                "run_exports": {"1.9": {"weak": ["a >=1.9"]}, "1.10": {"weak": ["a >=1.10"]}},
                "subdirs": [SUBDIR],
                "summary": "newest",
                "timestamp": 1_800_000_000,
                "version": "1.10",
            }
        },
    }


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ({"_path": "bin/a", "prefix_placeholder": "/p", "file_mode": "text"}, "text_prefix"),
        ({"_path": "bin/a", "prefix_placeholder": "/p", "file_mode": "binary"}, "binary_prefix"),
        ({"_path": "etc/conda/activate.d/a.sh"}, "activate.d"),
        ({"_path": "etc/conda/deactivate.d/a.sh"}, "deactivate.d"),
        ({"_path": "bin/.a-post-link.sh"}, "post_link"),
        ({"_path": "bin/.a-pre-link.sh"}, "pre_link"),
        ({"_path": "bin/.a-pre-unlink.sh"}, "pre_unlink"),
    ],
)
def test_flags(row: dict[str, str], flag: str) -> None:
    found = index.facts({"paths": {"paths": [{"_path": "bin/other"}, row]}})["flags"]
    assert found == {**PLAIN["flags"], flag: True} and not any(PLAIN["flags"].values())


def test_published_package_is_in_each_file(tmp_path: Path) -> None:
    exports = {"weak": ["small >=1.0,<2.0a0"]}
    package = add_exports(make(tmp_path), exports, ".conda")
    channel.publish(tmp_path / "channel", [package, make(tmp_path, version="0.9")])
    table = json.loads((tmp_path / "channel" / index.CHANNELDATA).read_bytes())
    assert table["packages"]["small"]["run_exports"] == {"1.0": exports}
    folder = tmp_path / "channel" / SUBDIR
    assert set(channel.read_table(folder / "current_repodata.json")["packages.conda"]) == {package.name}
    assert set(channel.read_table(folder / "run_exports.json")["packages.conda"]) == {package.name, "small-0.9-0.conda"}


def test_the_same_packages_give_the_same_bytes(tmp_path: Path) -> None:
    """All at once or one after the other; only what remembers dates differs."""
    packages = [make(tmp_path, name, version) for name in ("one", "two") for version in ("1", "2")]
    channel.publish(tmp_path / "once", packages)
    for package in reversed(packages):
        channel.publish(tmp_path / "each", [package])
    found = [contents(tmp_path / name) for name in ("once", "each")]
    for table in found:
        assert table.pop(f"{SUBDIR}/lmsbuild-index.json") and table.pop("noarch/lmsbuild-index.json")
    assert found[0] == found[1] and len(found[0]) == 4 + 6 + 6 + 1


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    channel.publish(folder / "channel", [make(folder, "one", "1"), make(folder, "one", "2")])
    return folder / "channel"


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize(
    "name", [index.CHANNELDATA, *(f"{SUBDIR}/{name}{end}" for name in index.FILES[:-1] for end in ("", ".zst"))]
)
def test_what_is_gone_or_another_is_found_and_written_anew(
    published: Path, tmp_path: Path, name: str, gone: bool
) -> None:
    folder = Path(shutil.copytree(published, tmp_path / "channel"))
    before = contents(folder)
    if gone:
        (folder / name).unlink()
    else:
        (folder / name).write_text("{}")
    with pytest.raises(BadChannel, match=Path(name).name.replace(".", r"\.")):
        audit.check(folder, RECIPES)
    channel.publish(folder, [])
    assert audit.check(folder, RECIPES) == 2
    before.pop(f"{SUBDIR}/lmsbuild-index.json")  # the copies have dates of their own
    assert before.items() <= contents(folder).items()


def test_a_channel_of_an_earlier_version_is_completed(published: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(published, tmp_path / "channel"))
    after = contents(folder)
    (folder / index.CHANNELDATA).unlink()
    for subdir in (SUBDIR, "noarch"):
        for end in ("", ".zst"):
            (folder / subdir / f"current_repodata.json{end}").unlink()
        (folder / subdir / "lmsbuild-index.json").write_text(json.dumps({"one-1-0.conda": [1, 1]}))
    assert channel.publish(folder, []).hashed == 2
    assert audit.check(folder, RECIPES) == 2
    after.pop(f"{SUBDIR}/lmsbuild-index.json")
    assert after.items() <= contents(folder).items()


def test_check_compares_the_whole_record(published: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(published, tmp_path / "channel"))
    path = folder / SUBDIR / "repodata.json"
    path.write_text(path.read_text().replace('"depends": []', '"depends": ["other"]'))
    with pytest.raises(BadChannel, match=r"one-1-0.conda: says depends \[\], the index says \['other'\]"):
        audit.check(folder, RECIPES)


@pytest.mark.parametrize(
    "change",
    [{"depends": ["a >="]}, {"constrains": ["a[build"]}, {"depends": "a"}, {"version": "a b"}, {"build_number": ""}],
)
def test_what_would_spoil_the_index_is_refused(change: dict[str, object]) -> None:
    """Clients read the whole index or nothing of it."""
    sound = {"name": "a", "version": "1", "build": "0", "build_number": 0, "depends": ["b >=1"], "subdir": SUBDIR}
    assert index.record("a-1-0.conda", {**sound, "arch": "x86_64"}) == sound
    with pytest.raises(DamagedPackage, match="build it again"):
        index.record("a-1-0.conda", {**sound, **change})
