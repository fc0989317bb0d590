"""`lmsbuild tag check`, on stand-ins."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
import synthetic_tensorflow as tensorflow
from lmsbuild import paths
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.errors import ChecksFailed, ResultsDiffer
from lmsbuild.tag import check_tags, platform_table
from lmsbuild.trial import trial
from lmsbuild.wheel.wheel import file_sha256
from shop import CPU_NAME, NAME, Shop
from synthetic import Member
from workshop import Workshop, found_only_in

pytestmark = pytest.mark.build  # starts the compiler for every tag


@pytest.fixture
def three(workshop: Workshop, first_three: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A catalogue of three tags: a sound one, one whose patch is stale, and one whose glue does not compile."""
    shutil.rmtree(workshop.patches)
    shutil.copytree(first_three, workshop.folder, symlinks=True, dirs_exist_ok=True)
    for name, value in found_only_in(workshop.folder / "shop").items():
        monkeypatch.setenv(name, value)
    return workshop


@pytest.fixture(scope="module")
def first_three(
    first_workshop: Workshop, stand_in: dict[str, Member], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder that each test gets a copy of."""
    folder = tmp_path_factory.mktemp("three")
    patches = Path(shutil.copytree(first_workshop.patches, folder / first_workshop.patches.name, symlinks=True))
    workshop = Workshop(folder, first_workshop.base, patches)
    shop = folder / "shop"
    shop.mkdir()
    header = "torch/include/ATen/ATen.h"
    for version, change in (("2.12.0", {}), ("2.14.0", {}), ("2.15.0", {header: Member(b"#pragma once\n")})):
        wheel = synthetic.write_wheel(
            shop / synthetic.wheel_name(version), {**synthetic.release(stand_in, version), **change}
        )
        wheels = {wheel.name: file_sha256(wheel)}
        tag = replace(workshop.tag, name=f"v{version}", version=version, commit="a1" * 20, wheels=wheels)
        tag = replace(tag, generation="1.1" if change else "2.0")
        rows.write(workshop.patches, tag)
        done = workshop.run("generate", tag.name, environment=found_only_in(shop))
        assert done.returncode == 0, done.stderr
    with (workshop.patches / "pytorch/v2.14.0/0005-call-lms.patch").open("a") as file:
        file.write("\n")
    shutil.rmtree(workshop.cache, ignore_errors=True)
    return folder


def test_every_tag_is_checked_and_the_failed_ones_are_named(three: Workshop) -> None:
    table = three.folder / "tags.md"
    done = three.run("tag", "check", "v2.15.0", "v2.12.0", "2.14.0", "--table", table)
    assert (done.returncode, done.stdout) == (ChecksFailed.exit_code, "")
    assert "2 of 3 tags failed: v2.15.0, v2.14.0" in done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in table.read_text().splitlines() if line.startswith("| pytorch")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in cells] == ["pytorch v2.12.0", "pytorch v2.14.0", "pytorch v2.15.0"]
    assert cells[0][1:-1] == ["`a1a1a1a1a1a1`", "none", "cxx11", "c++17", "2.0", f"**{synthetic.ABI}**", "builds"]
    assert "run `lmsbuild generate pytorch:v2.14.0`" in cells[1][-2]
    assert re.fullmatch(r"FAILS: the compiler failed .*LmsTorch.*", cells[2][-2])
    # Neither a wheel nor a base wheel is left, and nothing temporary.
    assert not list(three.folder.rglob("*lms1*.whl"))
    assert not [
        path for path in three.cache.iterdir() if path.suffix != ".lock" and path.name not in ("blobs", "objects")
    ]


def test_lines_of_other_tags_stay_in_the_table(three: Workshop) -> None:
    table = three.folder / "tags.md"
    others = ["| pytorch v2.9.1 | of old |", "| pytorch v2.12.0 | of old |", "| tensorflow v2.1.0 | of old |"]
    table.write_text("\n".join(["# Tags", *others, ""]))
    assert three.run("tag", "check", "v2.12.0", "--table", table).returncode == 0
    lines = [line for line in table.read_text().splitlines() if re.match(r"\| \w+ v", line)]
    assert [lines[0], lines[2]] == [others[0], others[2]]
    assert lines[1].startswith("| pytorch v2.12.0 | `a1a1") and len(lines) == 3


def test_base_wheels_that_were_cached_stay(three: Workshop) -> None:
    assert three.run("pytorch", "v2.12.0", "--output", three.output).returncode == 0
    done = three.run("tag", "check", "v2.12.0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Tags\n") and "| builds |" in done.stdout
    assert len(list(three.cache.glob("*/*.whl"))) == 1


@pytest.mark.parametrize("works", [True, False])
def test_smoke_trains_with_the_patched_wheel(three: Workshop, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    tried: list[Path] = []

    def train(wheel: Path, *words: object) -> str:
        assert wheel.is_file()
        tried.append(wheel)
        if not works:
            raise ResultsDiffer("results differ\nin all their digits")
        return "trained"

    monkeypatch.setattr(trial, "run", train)
    (result,) = check_tags.check(_tags(three, "v2.12.0"), three.patches, three.cache, smoke=True)
    assert [path.name.split("-")[1] for path in tried] == ["2.12.0+lms1"]
    assert (result.trained, result.failure) == (works, "" if works else "results differ")
    assert ("builds, trained" in check_tags.table([result])) is works


def test_a_row_that_is_not_true_is_found(three: Workshop, stand_in: dict[str, Member]) -> None:
    (tag,) = _tags(three, "v2.12.0")
    wheel = three.folder / "shop" / synthetic.wheel_name("2.12.0")
    files = synthetic.release(stand_in, "2.12.0")
    version = files["torch/version.py"].data + b"cuda = '12.4'\n"
    library = files["torch/lib/libc10.so"]
    synthetic.write_wheel(wheel, {**files, "torch/version.py": Member(version), "torch/lib/libc10_cuda.so": library})
    rows.write(three.patches, replace(tag, cuda="12.1", wheels={wheel.name: file_sha256(wheel)}))
    done = three.run("tag", "check", "v2.12.0")
    assert done.returncode == ChecksFailed.exit_code
    assert "tags.toml says cuda = 12.1 of v2.12.0, its wheel 12.4" in " ".join(done.stderr.split())


def test_a_version_file_that_cannot_be_edited_is_found_before_anything_is_compiled(
    three: Workshop, stand_in: dict[str, Member]
) -> None:
    """Of v2.15.0, whose glue does not compile."""
    (tag,) = _tags(three, "v2.15.0")
    wheel = three.folder / "shop" / synthetic.wheel_name("2.15.0")
    files = {**synthetic.release(stand_in, "2.15.0"), "torch/include/ATen/ATen.h": Member(b"#pragma once\n")}
    typed = files["torch/version.py"].data.replace(b"__version__ =", b"__version__: str =")
    synthetic.write_wheel(wheel, {**files, "torch/version.py": Member(typed)})
    rows.write(three.patches, replace(tag, wheels={wheel.name: file_sha256(wheel)}))
    done = three.run("tag", "check", "v2.15.0")
    assert done.returncode == ChecksFailed.exit_code
    assert "FAILS: the base wheel's torch/version.py does not set __version__ in one line" in done.stdout


def test_a_module_that_gets_no_names_is_found(tensorflow_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "run", lambda wheel, *words: "trained")
    tag = tensorflow_shop.add(package="tensorflow-cpu")
    files = {**tensorflow_shop.members("tensorflow-cpu"), tensorflow.EXPERIMENTAL: Member(b"import sys as _sys\n")}
    wheel = tensorflow_shop.publish(CPU_NAME, files)
    rows.write(tensorflow_shop.patches, replace(tag, wheels={CPU_NAME: file_sha256(wheel)}))
    done = tensorflow_shop.workshop.run("tag", "check", NAME, "--package", "tensorflow-cpu")
    assert done.returncode == ChecksFailed.exit_code, done.stderr
    assert "experimental/__init__.py in the base wheel imports no name" in done.stdout


def test_the_words_have_to_name_tags_or_all(workshop: Workshop) -> None:
    for words in ((), ("v2.13.0", "--all")):
        done = workshop.run("tag", "check", *words)
        assert done.returncode == 2
        assert "Name tags, or give --all" in done.stderr
    assert workshop.run("tag", "check", "v9.9.9").returncode == 4


def _tags(workshop: Workshop, *names: str) -> Sequence[Tag]:
    return [catalogue.find_tag(workshop.patches, name) for name in names]


def test_the_page_says_what_the_catalogue_has_for_each_platform(three: Workshop) -> None:
    page = (paths.patches_folder().parent / "docs/tags.md").read_text()
    own = platform_table.text(paths.patches_folder())
    assert page.endswith(own)
    assert "| v1.13.1 | 3.7, 3.8, 3.9, 3.10, 3.11 | 3.7, 3.8, 3.9, 3.10 | 3.11, Debian |\n" in own
    assert "| v2.1.0 to v2.1.4 | 3.7 |  |\n" in own
    table = three.folder / "tags.md"
    table.write_text("# Tags\n\n## By platform\n\n| v2.12.0 | 2.7 |\n")
    assert three.run("tag", "check", "v2.12.0", "--table", table).returncode == 0
    assert table.read_text().endswith(platform_table.text(three.patches))
    assert "2.7" not in table.read_text()
