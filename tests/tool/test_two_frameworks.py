"""The tool with a framework that is published as several packages, and whose wheels say less of themselves."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
import synthetic_tensorflow as tensorflow
from lmsbuild import paths
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.errors import (
    AmbiguousTag,
    BadRelease,
    BadSources,
    DownloadFailed,
    Failure,
    UnknownPackage,
    WrongVersion,
)
from lmsbuild.patch import api_modules, series
from lmsbuild.patch.api_modules import Export
from lmsbuild.sbom import sbom
from lmsbuild.trial import trial
from lmsbuild.wheel.wheel import WheelFile
from shop import CPU_NAME, CUDA_NAME, NAME, STUB_NAME, Shop
from synthetic import Member

pytestmark = pytest.mark.build  # starts the tool for every build


@pytest.fixture
def shop(tensorflow_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The shop, where a trial is taken to succeed: what it does is tested with a real wheel."""
    monkeypatch.setattr(trial, "run", lambda wheel, *words: f"trained with {wheel.name}")
    return tensorflow_shop


def _built(shop: Shop, *words: str | Path) -> Path:
    done = shop.workshop.run("tensorflow", NAME, "--output", shop.workshop.output, *words)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_a_row_says_what_wheels_of_both_packages_say(shop: Shop) -> None:
    tag = shop.add(package="tensorflow-cpu")
    with zipfile.ZipFile(shop.folder / CPU_NAME) as wheel:
        record = wheel.read(f"tensorflow_cpu-{tensorflow.VERSION}.dist-info/RECORD")
    assert (tag.package, tag.packages) == ("tensorflow", ("tensorflow", "tensorflow-cpu"))
    # The first digits of the commit are in the library; only the other package's wheel says which CUDA.
    assert (tag.commit, tag.cuda, tag.supports) == ("99d80a9e254", "11.8", ("cpu", "cuda"))
    assert (tag.standard, tag.generation, tag.abi) == ("c++17", "2.12", "cxx11")
    assert tag.records == {CPU_NAME: hashlib.sha256(record).hexdigest()}
    assert set(tag.wheels) == {CPU_NAME, CUDA_NAME}  # the one that only requires another package is no build
    assert set(tag.blobs) == {"tensorflow/core/protobuf/config.proto"}
    assert shop.add(update=True) == replace(tag, records=shop.tag.records)  # the other package's wheel says the same
    text = (shop.patches / "catalogue/tensorflow/tags.toml").read_text()
    assert text == tensorflow.TAGS + rows.text([shop.tag])


def test_the_wheel_of_either_package_is_patched(known_shop: Shop) -> None:
    shop = known_shop
    cpu = _built(shop, "--package", "tensorflow-cpu")
    assert cpu.name.startswith(f"tensorflow_cpu-{tensorflow.VERSION}+lms1-")
    cuda = _built(shop)
    assert cuda.name.startswith(f"tensorflow-{tensorflow.VERSION}+lms1-")
    given = _built(shop, "--base-wheel", shop.folder / CPU_NAME)
    assert given == cpu
    for wheel, has_gpu in ((cpu, False), (cuda, True)):
        folder = shop.workshop.folder / wheel.name
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        ctypes.CDLL(str(folder / tensorflow.LIBRARY), ctypes.RTLD_GLOBAL)
        added = ctypes.CDLL(str(folder / "tensorflow/libtensorflow_lms.so"))
        assert added.lms_answer() == 42
        assert hasattr(added, "lms_gpu") is has_gpu


def test_the_patched_wheel_differs_only_where_it_should(known_shop: Shop) -> None:
    shop = known_shop
    built = _built(shop, "--package", "tensorflow-cpu")
    with WheelFile(built) as after, WheelFile(shop.folder / CPU_NAME) as before:
        after.verify(lambda name: None, lambda done: None)
        old = {name.replace(before.dist_info, after.dist_info): row for name, row in before.record().items()}
        new = after.record()
        assert set(new) - set(old) == {
            "tensorflow/libtensorflow_lms.so",
            "tensorflow/python/lms/__init__.py",
            "tensorflow/python/lms/_library.py",
            f"{after.dist_info}/{sbom.MEMBER}",
        }
        assert set(old) <= set(new)
        described = {f"{after.dist_info}/{name}" for name in ("METADATA", "WHEEL", "RECORD")}
        changed = {name for name in old if old[name] != new[name]} - described
        assert changed == {tensorflow.PROTO, tensorflow.EXPERIMENTAL, "tensorflow/__init__.py"}
        assert b"use_unified_memory = 2;\n    bool lms_enabled = 10001;\n" in after.read(tensorflow.PROTO)
        lines = after.read(tensorflow.EXPERIMENTAL).decode().splitlines()
        assert lines[3:6] == [
            "from tensorflow.python.framework.config import get_memory_info",
            "from tensorflow.python.lms.config import set_lms_enabled",
            "from tensorflow.python.lms.config import get_lms_enabled",
        ]
        assert f"Version: {tensorflow.VERSION}+lms1\n" in after.read(f"{after.dist_info}/METADATA").decode()


def test_a_release_in_another_package_and_with_headers_beside_it(shop: Shop) -> None:
    files = tensorflow.classic(shop.members("tensorflow-cpu"), "tensorflow-cpu")
    shop.publish(CPU_NAME, files)
    shop.publish(CUDA_NAME, tensorflow.classic(shop.members("tensorflow", "10.1"), "tensorflow"))
    tag = shop.add(package="tensorflow-cpu")
    assert (tag.generation, tag.standard, tag.cuda) == ("2.1", "c++14", "10.1")
    assert tag.supports == ("cpu",)  # series.toml has nothing for the GPUs of that generation
    with WheelFile(_built(shop, "--package", "tensorflow-cpu")) as built:
        assert "tensorflow_core/libtensorflow_lms.so" in built.members
        assert "tensorflow_core/python/lms/__init__.py" in built.members
        assert b"lms_enabled" in built.read(tensorflow.PROTO.replace("tensorflow/", "tensorflow_core/", 1))


def test_every_tag_of_a_package_is_checked(known_shop: Shop) -> None:
    shop = known_shop
    done = shop.workshop.run("tag", "check", NAME, "--package", "tensorflow-cpu")
    assert done.returncode == 0, done.stderr
    assert f"| tensorflow {NAME} | `99d80a9e254` | 11.8 |" in done.stdout
    assert "| builds, for the CPU only |" in done.stdout
    assert shop.workshop.run("tag", "check", NAME).stdout.count("| builds |") == 1
    table = shop.workshop.folder / "tags.md"
    table.write_text("| pytorch v2.13.0 | of old |\n")
    every = shop.workshop.run("tag", "check", "--all", "--package", "tensorflow-cpu", "--table", table)
    assert every.returncode == 0, every.stderr
    lines = [line for line in table.read_text().splitlines() if "| pytorch" in line or "| tensorflow" in line]
    assert [line.split("|")[1].strip() for line in lines] == ["pytorch v2.13.0", f"tensorflow {NAME}"]
    rows.write(shop.patches, replace(shop.tag, commit="0" * 11))
    stale = shop.workshop.run("tag", "check", NAME, "--package", "tensorflow-cpu")
    assert "tags.toml says commit = 00000000000" in " ".join(stale.stderr.split())


def test_a_wheel_that_holds_no_build_is_refused(known_shop: Shop) -> None:
    shop = known_shop
    stub = shop.publish(CUDA_NAME.replace("-2.14.1-", "-2.14.1-1-"), tensorflow.requires_another("tensorflow"))
    done = shop.workshop.run("tensorflow", NAME, "--base-wheel", stub)
    assert done.returncode == BadRelease.exit_code
    assert f"{stub.name} has no {tensorflow.LIBRARY}: it holds no build" in " ".join(done.stderr.split())


def test_a_wheel_of_another_release_is_refused(known_shop: Shop) -> None:
    shop = known_shop
    for package in ("tensorflow", "tensorflow-cpu"):
        files = shop.members(package).items()
        other = synthetic.wheel_name("2.15.0", package=package.replace("-", "_"))
        wheel = shop.publish(other, {name.replace(tensorflow.VERSION, "2.15.0"): member for name, member in files})
        done = shop.workshop.run("tensorflow", NAME, "--base-wheel", wheel, "--output", shop.workshop.output)
        assert (done.returncode, done.stdout) == (WrongVersion.exit_code, "")
        said = " ".join(done.stderr.split())
        assert (
            f"{other} is {package} 2.15.0, but {NAME} needs tensorflow or tensorflow-cpu {tensorflow.VERSION}" in said
        )
        assert not list(shop.workshop.output.glob("*"))


@pytest.mark.parametrize(
    ("spoil", "failure", "message"),
    [
        ("no commit", BadRelease, r"does not state its commit \(in tensorflow/none\.so or tensorflow/libtensor"),
        (
            "no module",
            BadSources,
            "adds names to tensorflow/_api/v2/config/experimental/__init__.py, but the base wheel",
        ),
        ("no import", BadSources, "experimental/__init__.py in the base wheel imports no name"),
        ("not installed", BadSources, r"edits\.toml edits .*config\.proto for v2\.14\.1, but .* has no such file"),
        ("no main wheel", DownloadFailed, "pip lists no tensorflow file that the catalogue knows"),
        ("no package", DownloadFailed, "pip lists no file of tensorflow"),
    ],
)
def test_what_a_wheel_does_not_have_is_said_and_nothing_written(
    shop: Shop, spoil: str, failure: type[Failure], message: str
) -> None:
    files = shop.members("tensorflow-cpu")
    if spoil == "no commit":
        files[tensorflow.LIBRARY] = Member(shop.framework.replace(b"-g99d", b"-x99d"))
    elif spoil == "no module":
        del files[tensorflow.EXPERIMENTAL]
    elif spoil == "no import":
        files[tensorflow.EXPERIMENTAL] = Member(b"import sys as _sys\nfrom x import y as _y\n")
    elif spoil == "not installed":
        synthetic.edit_file(
            shop.patches / "catalogue/tensorflow/series.toml",
            lambda text: text.replace('"tensorflow/core/protobuf/', '"other/'),
        )
    elif spoil == "no main wheel":
        (shop.folder / CUDA_NAME).unlink()
    else:
        for name in (CUDA_NAME, STUB_NAME):
            (shop.folder / name).unlink()
    shop.publish(CPU_NAME, files)
    before = {path: path.read_bytes() for path in shop.patches.rglob("*") if path.is_file()}
    with pytest.raises(failure, match=message):
        shop.add(package="tensorflow-cpu")
    assert {path: path.read_bytes() for path in shop.patches.rglob("*") if path.is_file()} == before


def test_a_package_that_the_framework_is_not_published_as(known_shop: Shop) -> None:
    shop, tag = known_shop, known_shop.tag
    done = shop.workshop.run("tensorflow", NAME, "--package", "tensorflow-gpu")
    assert done.returncode == UnknownPackage.exit_code
    assert "tensorflow is not published as 'tensorflow-gpu', but as tensorflow or tensorflow-cpu" in done.stderr
    assert list(catalogue.of_package(tag, "tensorflow-cpu").wheels) == [CPU_NAME]
    assert catalogue.of_package(tag, None) is tag


def test_a_tag_of_both_frameworks_has_to_be_named_in_full(known_shop: Shop) -> None:
    shop, tag = known_shop, known_shop.tag
    rows.write(shop.patches, replace(shop.workshop.tag, name=NAME, version=tensorflow.VERSION))
    for words in (("generate", NAME), ("source", NAME, "tree"), ("patch", "2.14.1", "tree"), ("tag", "check", NAME)):
        done = shop.workshop.run(*words)
        assert done.returncode == AmbiguousTag.exit_code, done.stderr
        assert "2 frameworks have a tag v2.14.1: write pytorch:v2.14.1 or tensorflow:v2.14.1" in done.stderr
    assert shop.workshop.run("generate", "tensorflow:2.14.1", "--check").returncode == 0
    assert catalogue.find_tag(shop.patches, f"tensorflow:{NAME}") == tag
    assert shop.workshop.run("generate", f"tensorflwo:{NAME}").returncode == 3


def test_the_patch_of_a_release_without_edited_files_is_generated(shop: Shop) -> None:
    (shop.patches / "catalogue/tensorflow/edits.toml").write_text("edit = []\n")
    tag = shop.add(package="tensorflow-cpu")
    assert dict(tag.blobs) == {}
    tree = shop.workshop.folder / "tree"
    subprocess.run(["git", "init", "-q", tree], check=True)
    words = ["git", "-C", tree, "-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run([*words, "commit", "-q", "--allow-empty", "-m", "base"], check=True)
    assert shop.workshop.run("patch", f"tensorflow:{NAME}", tree).returncode == 0
    assert (tree / "tensorflow/python/lms/BUILD").is_file()


def test_names_are_added_once_and_to_a_last_line_without_an_end() -> None:
    export = Export(("m.py",), "x.lms", ("one", "two"))
    lines = api_modules.find([export], {"m.py"})
    once = api_modules.edit({"m.py": b"from . import a\nfrom x.y import b as c"}, lines)
    assert once == {"m.py": b"from . import a\nfrom x.y import b as c\nfrom x.lms import one\nfrom x.lms import two\n"}
    assert api_modules.edit(once, lines) == once


def test_the_members_of_the_patched_tree_in_the_wheel() -> None:
    patches = paths.patches_folder()
    found = series.read_series(patches, catalogue.find_tag(patches, NAME, "tensorflow")).graft
    assert found.member("tensorflow/python/lms/config.py") == "tensorflow/python/lms/config.py"
    assert found.member("tensorflow/core/protobuf/config.proto") == tensorflow.PROTO
    assert found.member("tensorflow/python/lms/BUILD") is None
    assert found.member("tensorflow/core/common_runtime/lms/lms_pager.cc") is None
