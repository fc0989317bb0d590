"""What can be built: true to the catalogue, and in the form that GitHub's workflows take."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from dataclasses import asdict

import pytest
from click.testing import CliRunner

from lmsbuild import paths
from lmsbuild.catalogue import catalogue, debian_builds
from lmsbuild.cli import cli
from lmsbuild.errors import AmbiguousTag, Failure, NothingToBuild, UnknownPackage, UnknownTag, WrongPlatform
from lmsbuild.matrix import build_all, matrix, stamp
from lmsbuild.matrix.matrix import Filters
from lmsbuild.matrix.row import KINDS, Row

PATCHES, RECIPES = paths.patches_folder(), paths.recipes_folder()
TAGS = {(tag.framework, tag.name): tag for tag in catalogue.tags(PATCHES)}
MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le"}


def _select(**filters: object) -> list[Row]:
    return matrix.select(PATCHES, RECIPES, Filters(**filters))  # type: ignore[arg-type]


def _officials(row: Row) -> list[str]:
    """The official wheels for the row, by their names alone."""
    tag = TAGS[row.framework, row.tag]
    abi = "cp" + row.python.replace(".", "") + ("m" if row.python == "3.7" else "")
    own = re.escape(f"{row.package.replace('-', '_')}-{tag.version}")
    pattern = re.compile(rf"{own}(\+cpu)?(-\d+)?-cp\d+-{abi}-manylinux.*_{MACHINES[row.platform]}\.whl")
    return sorted(name for name in tag.wheels if pattern.fullmatch(name))


def test_every_row_has_an_official_wheel_and_every_official_wheel_its_rows() -> None:
    rows = [row for row in _select() if row.platform != "linux-ppc64le"]
    assert len({row.name for row in rows}) == len(rows) > 1000
    for kind in KINDS:
        met = {name for row in rows if row.kind == kind for name in _officials(row)}
        assert met == {name for tag in TAGS.values() for name in tag.wheels}
    for row in rows:
        assert _officials(row), row.name
        tag = TAGS[row.framework, row.tag]
        found = matrix.wheels_for(tag, row.package, row.python, MACHINES[row.platform])
        assert found == {name: tag.wheels[name] for name in _officials(row)}


def test_what_debian_builds_has_a_row_of_its_package() -> None:
    """For a machine that has no official wheels. `lmsbuild pytorch` makes no wheel of it, so there is no row of one."""
    (build,) = debian_builds.read(PATCHES, "pytorch")
    (row,) = _select(platforms=["linux-ppc64le"])
    assert row == Row("pytorch", build.tag, "torch", build.python, "linux-ppc64le", "conda")
    stamped = stamp.inputs(row, ())
    assert stamped["base"]["framework"] == list(build.framework)
    assert json.loads(json.dumps(stamped)) == stamped


def test_no_two_packages_of_a_tag_have_one_file_name() -> None:
    """A conda package is called after its framework, whatever the wheel's package: CUDA tells those of a tag apart."""
    others = [row for row in _select(kinds=["conda"]) if row.package != TAGS[row.framework, row.tag].packages[0]]
    assert others
    for row in others:
        assert TAGS[row.framework, row.tag].cuda and row.platform == "linux-64", row.name


def test_the_order_is_that_of_versions() -> None:
    rows = [row for row in _select(frameworks=["pytorch"], kinds=["wheel"], platforms=["x86_64"])]
    assert rows[0].name == "torch-v1.1.0-py3.7-linux-64-wheel"
    numbers = [(catalogue.number(row.tag), int(row.python[2:].rstrip("t"))) for row in rows]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (
            {"tags": ["pytorch:v2.13.0"], "pythons": ["3.12"], "platforms": ["linux-64"]},
            ["torch-v2.13.0-py3.12-linux-64-wheel", "torch-v2.13.0-py3.12-linux-64-conda"],
        ),
        (
            {"frameworks": ["tensorflow"], "tags": ["2.14.1"], "pythons": ["3.11"], "kinds": ["wheel"]},
            ["tensorflow-v2.14.1-py3.11-linux-64-wheel", "tensorflow-cpu-v2.14.1-py3.11-linux-64-wheel"],
        ),
        (
            {"packages": ["torch"], "tags": ["v2.15.0"], "pythons": ["3.14"], "platforms": ["aarch64"]},
            ["torch-v2.15.0-py3.14-linux-aarch64-wheel", "torch-v2.15.0-py3.14-linux-aarch64-conda"],
        ),
        ({"names": ["torch-v1.4.0-py3.7-linux-64-wheel"]}, ["torch-v1.4.0-py3.7-linux-64-wheel"]),
    ],
)
def test_filters_choose_rows(filters: dict[str, list[str]], names: list[str]) -> None:
    assert [row.name for row in _select(**filters)] == names


def test_shards_are_all_rows_once() -> None:
    parts = [_select(frameworks=["tensorflow"], shard=f"{part}/3") for part in (1, 2, 3)]
    assert sorted(row.name for part in parts for row in part) == sorted(
        row.name for row in _select(frameworks=["tensorflow"])
    )
    assert max(map(len, parts)) - min(map(len, parts)) <= 2
    for part in parts:
        kinds = Counter(row.stem for row in part)
        assert set(kinds.values()) == {2}, "a wheel is not with its package"


@pytest.mark.parametrize(
    ("filters", "error", "said"),
    [
        ({"frameworks": ["pytorch"], "tags": ["v2.13.1"]}, UnknownTag, "no pytorch tag 'v2.13.1'"),
        ({"tags": ["v2.14.1"]}, AmbiguousTag, "pytorch:v2.14.1 or tensorflow:v2.14.1"),
        ({"packages": ["torhc"]}, UnknownPackage, "torhc"),
        ({"platforms": ["linux-s390x"]}, WrongPlatform, "linux-64"),
        ({"platforms": ["linux-ppc64le"], "kinds": ["wheel"]}, NothingToBuild, "none of what can be built"),
        ({"names": ["torch-v2.13.0-py3.12-linux-64-weel"]}, NothingToBuild, "torch-v2.13.0-py3.12-linux-64-wheel"),
        ({"shard": "0/4"}, NothingToBuild, "1/4"),
        ({"shard": "5/4"}, NothingToBuild, "1/4"),
        ({"tags": ["pytorch:v2.13.0"], "shard": "99/100"}, NothingToBuild, "the filters leave .*: take fewer parts"),
        ({"pythons": ["py312"]}, NothingToBuild, "for --python 'py312': there are 3.7, 3.8,"),
        ({"pythons": ["3.12", "3.99"]}, NothingToBuild, "for --python '3.99'"),
    ],
)
def test_what_there_is_not_is_said(filters: dict[str, object], error: type[Failure], said: str) -> None:
    with pytest.raises(error, match=said):
        _select(**filters)


def test_the_command_prints_one_line_that_a_workflow_takes() -> None:
    done = CliRunner().invoke(cli, ["matrix", "--tag", "pytorch:v2.13.0", "--python", "3.12", "--kind", "conda"])
    assert done.exit_code == 0
    (row, other) = _select(tags=["pytorch:v2.13.0"], pythons=["3.12"], kinds=["conda"])
    assert done.stdout == json.dumps({"include": [{"name": each.name, **asdict(each)} for each in (row, other)]}) + "\n"


def test_build_all_takes_a_row_by_its_name_for_whatever_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(build_all, "build", lambda options: asked.append([row.name for row in options.rows]) or [])
    name = "torch-v2.13.0-py3.12-linux-aarch64-wheel"
    for words in (["--name", name], ["--package", "torch", "--tag", "v2.13.0", "--python", "3.12"]):
        assert CliRunner().invoke(cli, ["build-all", *words]).exit_code == 0
    others = [row.name for row in _select(tags=["pytorch:v2.13.0"], pythons=["3.12"], platforms=[platform.machine()])]
    assert asked == [[name], others]


@pytest.mark.parametrize("filters", [{}, {"kinds": ["wheel"]}])
def test_more_rows_than_a_workflow_takes_are_noted(filters: dict[str, list[str]]) -> None:
    words = [word for kind in filters.get("kinds", []) for word in ("--kind", kind)]
    done = CliRunner().invoke(cli, ["matrix", *words])
    parts = int(re.search(r"--shard 1/(\d+)", " ".join(done.stderr.split()))[1])  # type: ignore[index]
    for part in range(1, parts + 1):
        assert len(_select(**filters, shard=f"{part}/{parts}")) <= matrix.MOST_JOBS
    assert len(_select(**filters, shard=f"1/{parts - 1}")) > matrix.MOST_JOBS
