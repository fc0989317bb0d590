"""`lmsbuild tag add`, on a stand-in release: what it writes, and that it writes nothing when anything goes wrong."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
from lmsbuild import paths
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.errors import (
    BadRelease,
    BadSources,
    CompilerFailed,
    DownloadFailed,
    Failure,
    ResultsDiffer,
    TagExists,
    UnknownRelease,
    WrongHash,
    WrongVersion,
)
from lmsbuild.patch.patch import find_patch
from lmsbuild.tag import add_tag
from lmsbuild.trial import trial
from lmsbuild.wheel.wheel import file_sha256
from synthetic import Member
from workshop import Workshop

pytestmark = pytest.mark.build  # runs pip, a second each time

NEW = "v2.14.0"
NAME = synthetic.wheel_name("2.14.0")


@pytest.fixture
def shop(
    workshop: Workshop, stand_in: dict[str, Member], monkeypatch: pytest.MonkeyPatch
) -> tuple[Workshop, dict[str, Member]]:
    """A workshop whose registry has a release that the catalogue lacks, and the files of its wheel."""
    (workshop.folder / "shop").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(workshop.folder / "shop"))
    # What the trial itself does is tested with a real wheel.
    monkeypatch.setattr(trial, "run", lambda wheel, *words: f"trained with {wheel.name}")
    files = synthetic.release(stand_in, "2.14.0")
    _publish(workshop, files)
    return workshop, files


def _publish(workshop: Workshop, files: Mapping[str, Member], name: str = NAME) -> Path:
    return synthetic.write_wheel(workshop.folder / "shop" / name, files)


def _options(workshop: Workshop, **changes: object) -> add_tag.Options:
    options = add_tag.Options(
        framework="pytorch",
        names=(NEW,),
        target=synthetic.TARGET,
        interpreter=None,
        patches=workshop.patches,
        cache=workshop.cache,
        base_wheel=None,
        update=False,
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def _add(options: add_tag.Options) -> str:
    return "\n".join(add_tag.add(options))


def _record(workshop: Workshop) -> str:
    with zipfile.ZipFile(workshop.folder / "shop" / NAME) as wheel:
        return hashlib.sha256(wheel.read("torch-2.14.0.dist-info/RECORD")).hexdigest()


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_release_becomes_a_row_and_a_patch(shop: tuple[Workshop, dict[str, Member]]) -> None:
    workshop, _ = shop
    other = synthetic.wheel_name("2.14.0", abi="cp39")
    beside = [  # what is not for a machine or an interpreter that the tool serves, and another release
        synthetic.wheel_name("2.14.0", platform="win_amd64"),
        synthetic.wheel_name("2.14.0", abi="cp36m"),
        synthetic.wheel_name("2.14.0", abi="cp27mu"),
        synthetic.wheel_name("2.14.1", abi="cp39"),
    ]
    for name in (other, *beside):
        shutil.copy(workshop.folder / "shop" / NAME, workshop.folder / "shop" / name)
    before = catalogue.tags(workshop.patches)
    assert _add(_options(workshop)).startswith("trained with torch-2.14.0+lms1-")
    tag = catalogue.find_tag(workshop.patches, NEW)
    assert [*before, tag] == catalogue.tags(workshop.patches)
    digest = file_sha256(workshop.folder / "shop" / NAME)
    assert tag == replace(
        workshop.tag,
        name=NEW,
        version="2.14.0",
        commit="a1" * 20,
        standard="c++17",
        trained=synthetic.TARGET.python,
        records={NAME: _record(workshop)},
        wheels={NAME: digest, other: digest},
    )
    patch = find_patch(workshop.patches, tag)
    assert dict(patch.edited) == dict(tag.blobs)
    assert not [path for path in workshop.cache.iterdir() if path.name.startswith(".lmsbuild")]
    assert workshop.run("generate", NEW, "--check").returncode == 0


def test_a_cuda_wheel_and_its_standard_and_generation_are_told_from_it(
    shop: tuple[Workshop, dict[str, Member]],
) -> None:
    workshop, files = shop
    config = next(name for name in files if name.endswith("TorchConfig.cmake"))
    header = files["torch/include/ATen/ATen.h"]
    _publish(
        workshop,
        {
            **files,
            "torch/version.py": replace(
                files["torch/version.py"], data=files["torch/version.py"].data + b"cuda: str = '12.4'\n"
            ),
            "torch/lib/libc10_cuda.so": files["torch/lib/libc10.so"],
            config: Member(b"target_compile_features(torch INTERFACE cxx_std_11)\n"),
            "torch/include/ATen/ATen.h": replace(header, data=header.data.replace(b"int answer", b"extern int answer")),
        },
    )
    synthetic.edit_file(
        workshop.patches / "catalogue/pytorch/series.toml", lambda text: text.replace('"int answer"', '"\\nint answer"')
    )
    with pytest.raises(CompilerFailed):  # the other generation is linked with nothing that has the answer
        _add(_options(workshop))
    synthetic.edit_file(
        workshop.patches / "catalogue/pytorch/series.toml",
        lambda text: text.replace("torch_cpu = []", 'torch_cpu = ["torch_cpu"]'),
    )
    _add(_options(workshop))
    tag = catalogue.find_tag(workshop.patches, NEW)
    # The stand-in for series.toml has no library for CUDA, so nothing pages its tensors.
    assert (tag.cuda, tag.standard, tag.generation, tag.supports) == ("12.4", "c++14", "1.1", ("cpu",))


def test_rows_are_in_the_order_of_versions_and_in_one_form(workshop: Workshop) -> None:
    path = workshop.patches / "catalogue/pytorch/tags.toml"
    head = path.read_text().split("[[tag]]")[0]
    for name in ("v2.9.0", "v2.10.0", "v1.13.1"):
        rows.write(workshop.patches, replace(workshop.tag, name=name, version=name[1:]))
    tags = catalogue.tags(workshop.patches)
    assert [tag.name for tag in tags] == ["v1.13.1", "v2.9.0", "v2.10.0", "v2.13.0"]
    assert path.read_text() == head + rows.text(reversed(tags))
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_the_committed_catalogue_is_in_that_form(framework: str) -> None:
    patches = paths.patches_folder()
    text = (patches / "catalogue" / framework / "tags.toml").read_text()
    known = [tag for tag in catalogue.tags(patches) if tag.framework == framework]
    assert known
    assert text == text.split("[[tag]]")[0] + rows.text(known)


@pytest.mark.parametrize(
    ("spoil", "failure", "message"),
    [
        ("there already", TagExists, "v2.13.0 is in the catalogue: `--update`"),
        ("unknown release", UnknownRelease, r"lists no wheel of torch 2\.15\.0 for Linux"),
        ("no tag", BadSources, "'vnext' is not a tag such as v2.13.0"),
        ("no commit", BadRelease, rf"{NAME} does not state its commit \(in torch/version.py\)"),
        ("no standard", BadRelease, "does not state its C\\+\\+ standard"),
        ("no generation", BadRelease, "is of no generation"),
        (
            "anchor",
            BadSources,
            r"torch/__init__\.py occurs 0 times.*\"_export\".*in the files of v2\.14\.0: end that edit",
        ),
        ("file", BadSources, r"edits torch/cuda/__init__\.py for v2\.14\.0, but .* has no such file"),
        ("no such library", CompilerFailed, "undefined reference"),
        ("differs", ResultsDiffer, "results differ"),
        ("no network", DownloadFailed, "pip lists no file of torch: check the network"),
        ("other wheel", WrongHash, "is no official wheel of torch 2.14.0"),
        ("replaced wheel", WrongHash, "the official one has"),
        ("other build", BadRelease, r"is a build of its own \(cpu\)"),
        ("other version", WrongVersion, r"is torch 2\.14\.0, but"),
    ],
)
def test_when_anything_fails_nothing_is_written(
    shop: tuple[Workshop, dict[str, Member]],
    monkeypatch: pytest.MonkeyPatch,
    spoil: str,
    failure: type[Failure],
    message: str,
) -> None:
    workshop, files = shop
    options = _options(workshop)
    version = files["torch/version.py"]
    if spoil == "there already":
        options = _options(workshop, names=("v2.13.0",))
    elif spoil == "unknown release":
        options = _options(workshop, names=("v2.15.0",))
    elif spoil == "no tag":
        options = _options(workshop, names=("vnext",))
    elif spoil == "no commit":
        unknown = version.data.replace(b"a1" * 20, b"Unknown")
        _publish(workshop, {**files, "torch/version.py": Member(unknown)})
    elif spoil == "no standard":
        _publish(workshop, {name: member for name, member in files.items() if not name.endswith(".cmake")})
    elif spoil == "no generation":
        synthetic.edit_file(
            workshop.patches / "catalogue/pytorch/series.toml", lambda text: text.replace("has = {", 'has = { x = "",')
        )
    elif spoil == "anchor":
        _publish(workshop, {**files, "torch/__init__.py": Member(b"_lazy_modules = {}\n")})
    elif spoil == "file":
        _publish(workshop, {name: member for name, member in files.items() if name != "torch/cuda/__init__.py"})
    elif spoil == "no such library":
        _publish(workshop, {name: member for name, member in files.items() if not name.endswith("libtorch_cpu.so")})
    elif spoil == "differs":

        def differ(*words: object) -> str:
            raise ResultsDiffer("results differ")

        monkeypatch.setattr(trial, "run", differ)
    elif spoil == "no network":
        monkeypatch.setenv("PIP_FIND_LINKS", str(workshop.folder / "nowhere"))
    elif spoil == "other wheel":
        options = _options(workshop, base_wheel=workshop.base)
    elif spoil == "replaced wheel":
        other = synthetic.write_wheel(workshop.folder / NAME, {**files, "torch/bin/protoc": Member(b"other")})
        options = _options(workshop, base_wheel=other)
    elif spoil == "other build":
        _publish(workshop, synthetic.release(files, "2.14.0+cpu"), synthetic.wheel_name("2.14.0+cpu"))
    elif spoil == "other version":
        options = _options(workshop, names=("v2.14",))
        monkeypatch.setattr(
            add_tag.release, "wheels", lambda *words: {NAME: file_sha256(workshop.folder / "shop" / NAME)}
        )
        options = replace(options, base_wheel=workshop.folder / "shop" / NAME)
    before = _contents(workshop.patches)
    with pytest.raises(failure, match=message):
        _add(options)
    assert _contents(workshop.patches) == before
    left = list(workshop.cache.iterdir()) if workshop.cache.exists() else []
    assert not [path for path in left if path.name.startswith(".lmsbuild")]


def test_of_several_tags_those_before_a_failure_stay(shop: tuple[Workshop, dict[str, Member]]) -> None:
    workshop, _ = shop
    with pytest.raises(UnknownRelease):
        _add(_options(workshop, names=(NEW, "v2.15.0")))
    assert [tag.name for tag in catalogue.tags(workshop.patches)] == ["v2.13.0", NEW]


def test_a_row_that_cannot_be_written_takes_the_patch_back(
    shop: tuple[Workshop, dict[str, Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop, _ = shop
    before = _contents(workshop.patches)
    write = rows.write

    def only_aside(patches: Path, tag: catalogue.Tag) -> None:
        if patches == workshop.patches:
            raise KeyboardInterrupt
        write(patches, tag)

    monkeypatch.setattr(rows, "write", only_aside)
    with pytest.raises(KeyboardInterrupt):
        _add(_options(workshop))
    assert _contents(workshop.patches) == before
    with pytest.raises(KeyboardInterrupt):
        _add(_options(workshop, update=True))
    assert _contents(workshop.patches) == before


def test_update_reads_a_tag_anew_and_keeps_wheels_of_other_places(
    shop: tuple[Workshop, dict[str, Member]],
) -> None:
    workshop, _ = shop
    _add(_options(workshop))
    right = catalogue.find_tag(workshop.patches, NEW)
    elsewhere = {"torch-2.14.0+cpu-cp39-cp39-linux_x86_64.whl": "0" * 64}
    rows.write(workshop.patches, replace(right, commit="0" * 40, standard="c++20", wheels=elsewhere))
    hook = find_patch(workshop.patches, right).files[-1]
    hook.unlink()
    _add(_options(workshop, update=True))
    tag = catalogue.find_tag(workshop.patches, NEW)
    assert tag == replace(right, wheels={**elsewhere, **right.wheels})
    assert hook.is_file()


def test_the_command_says_what_is_wrong(workshop: Workshop) -> None:
    offline = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(workshop.folder / "none")}
    done = workshop.run("tag", "add", "pytorch", "v2.14.0", environment=offline)
    assert (done.returncode, done.stdout) == (DownloadFailed.exit_code, "")
    assert "check the network" in done.stderr and "Traceback" not in done.stderr
    done = workshop.run("tag", "add", "pytorhc", "v2.14.0")
    assert done.returncode == 3
    done = workshop.run("tag", "add", "pytorch", "2.13.0")
    assert done.returncode == TagExists.exit_code
    done = workshop.run("tag", "add", "pytorch", "v2.14.0", "--python", "3.99")
    assert done.returncode == 25
    assert "no python3.99 in PATH" in done.stderr
