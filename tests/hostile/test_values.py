"""Values of any form in the place of those that files have: each is taken as others read it, or refused by one of our own failures."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mutate
import raw_packages
import synthetic
from lmsbuild.channel import index, inspection
from lmsbuild.errors import DamagedPackage, DamagedWheel, TamperedWheel, UnsafeSource
from lmsbuild.published import strict_json
from lmsbuild.source import address
from lmsbuild.wheel.wheel import WheelFile
from stand_ins import SUBDIR
from synthetic import DIST_INFO, Member

TEXTS = st.one_of(st.text(max_size=20), st.sampled_from([each for each in mutate.VALUES if isinstance(each, str)]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
FIELDS = (
    *raw_packages.INDEX,
    "constrains",
    "timestamp",
    "license",
    "noarch",
    "track_features",
    "features",
    "purls",
    "arch",
)
EXPORTS = {"weak": ["raw >=1"], "strong": []}
ABOUT = {"license": "MIT", "summary": "One."}


def changes(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=2)


@given(st.one_of(st.binary(), VALUES.map(lambda value: json.dumps(value).encode())))
def test_json(data: bytes) -> None:
    """What is taken is what every reader takes it for, and can be written again."""
    try:
        found = strict_json.parse(data)
    except ValueError:
        return
    assert found == json.loads(data)
    assert json.loads(json.dumps(found, ensure_ascii=False, allow_nan=False).encode()) == found


@given(changes(FIELDS))
def test_no_row_makes_an_index_unreadable(change: dict[str, Any]) -> None:
    try:
        row = index.record(f"{raw_packages.NAME}.conda", {**raw_packages.INDEX, **change})
    except DamagedPackage:
        return
    good = {**raw_packages.INDEX, "name": "good"}
    part = index.Part(SUBDIR, {f"{raw_packages.NAME}.conda": row, "good-1.0-0.conda": good}, {})
    assert set(part.packages) == set(part.records)


@given(changes(FIELDS), changes(tuple(EXPORTS)), changes(tuple(ABOUT)), changes(("noarch", "package_metadata_version")))
def test_what_a_package_says_can_be_published(
    fields: dict[str, Any], exports: dict[str, Any], about: dict[str, Any], link: dict[str, Any]
) -> None:
    tables = raw_packages.tables(
        [], {**raw_packages.INDEX, **fields}, run_exports={**EXPORTS, **exports}, about={**ABOUT, **about}
    )
    name = f"{raw_packages.NAME}.conda"
    try:
        package = raw_packages.package(
            raw_packages.build(described={**tables, "link": {"package_metadata_version": 1, **link}})
        )
        described = inspection.sound(package)
        row = index.record(name, described["index"])
    except (DamagedPackage, UnicodeError):  # the latter of what cannot be written into a package
        return
    facts = index.facts(described)
    assert index.are_facts(json.loads(json.dumps(facts)))
    part = index.Part(row["subdir"], {name: row}, {name: facts})
    for table in (*index.tables(part).values(), index.channeldata([part])):
        assert strict_json.parse(index.as_bytes(table)) == table


GOOD = {
    "METADATA": b"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n",
    "WHEEL": f"Wheel-Version: 1.0\nTag: {synthetic.ABI}-{synthetic.ABI}-{synthetic.PLATFORM}\n".encode(),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values") / synthetic.wheel_name()


@given(
    st.sampled_from(sorted(GOOD)),
    st.one_of(st.binary(max_size=60), TEXTS.map(lambda text: text.encode(errors="replace"))),
    st.data(),
)
def test_what_describes_a_wheel(path: Path, name: str, added: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GOOD[name])))
    stated = {**GOOD, name: GOOD[name][:at] + added + GOOD[name][at:]}
    synthetic.write_wheel(path, {f"{DIST_INFO}/{each}": Member(text) for each, text in stated.items()})
    with suppress(DamagedWheel), WheelFile(path) as wheel:
        wheel.check_installable()
        assert wheel.verify(lambda name: None, lambda done: None) == {}


@given(TEXTS)
def test_lines_of_a_record(path: Path, added: str) -> None:
    files = {f"{DIST_INFO}/{each}": Member(text) for each, text in GOOD.items()}
    synthetic.write_wheel(path, files, added.encode(errors="replace").decode())
    with suppress(DamagedWheel, TamperedWheel), WheelFile(path) as wheel:
        assert wheel.verify(lambda name: None, lambda done: None) == {}


@given(
    st.one_of(
        TEXTS,
        st.builds("{}{}{}".format, st.sampled_from(["", "ext::", "https://", "file://", "-u", "a:"]), TEXTS, TEXTS),
    )
)
def test_addresses(text: str) -> None:
    """Git is given only what it reads as an address of a protocol that transfers, and no option."""
    try:
        spoken, path = address.spoken(text), address.local_path(text)
    except UnsafeSource:
        return
    assert set(spoken.split(":")) <= {"file", "git", "http", "https", "ssh"} and not text.startswith("-")
    assert (path is None) == (spoken != "file")
    assert "::" not in text.partition("/")[0] or spoken == "ssh"
