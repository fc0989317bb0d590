"""The real patched wheel, and the committed patch against the official wheel."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lmsbuild import catalogue, download, paths, symbols
from lmsbuild.git import blob_hash
from lmsbuild.patch import read_patch
from lmsbuild.target import target_for
from lmsbuild.wheel import WheelFile, parse_name, record_hash

PATCHES = paths.patches_folder()
TAG = catalogue.find_tag(PATCHES, "v2.13.0")
LIBRARY = "torch/lib/libtorch_lms.so"


@pytest.fixture(scope="module")
def base_wheel(built_wheel: Path) -> Path:
    """The official wheel that `built_wheel` was made from, out of the cache."""
    return download.fetch(TAG, target_for(None), paths.cache_folder())


def _tool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("lmsbuild")
    return subprocess.run([tool, *words], capture_output=True, text=True, check=False)


def test_every_file_is_what_its_record_says(built_wheel: Path) -> None:
    with WheelFile(built_wheel) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_it_differs_from_the_official_wheel_only_where_it_should(built_wheel: Path, base_wheel: Path) -> None:
    patch = read_patch(PATCHES / TAG.patch_name)
    with WheelFile(built_wheel) as built, WheelFile(base_wheel) as base:
        before, after = base.record(), built.record()
        old, new = f"{base.dist_info}/", f"{built.dist_info}/"
        moved = {name.replace(old, new, 1): row for name, row in before.items()}
        added = {name for name in patch.added if name.startswith("torch/")} | {LIBRARY}
        assert set(after) - set(moved) == added
        assert set(moved) - set(after) == set()
        changed = {name for name in moved if moved[name] != after[name]}
        assert changed - {f"{new}WHEEL"} == {*patch.edited, "torch/version.py", f"{new}METADATA"}
        for name, row in moved.items():
            assert base.members[name.replace(new, old, 1)].external_attr == built.members[name].external_attr, row


def test_the_platform_tag_is_true(built_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built_wheel) as archive:
        library = Path(archive.extract(LIBRARY, tmp_path))
        wheel_file = next(name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        tags = {line[5:] for line in archive.read(wheel_file).decode().splitlines() if line.startswith("Tag: ")}
    name = parse_name(built_wheel)
    assert tags == {str(tag) for tag in name.tags} or {tag.lower() for tag in tags} == {str(tag) for tag in name.tags}
    need = symbols.oldest_glibc(symbols.needed_versions(library))
    assert need.minor is not None
    for platform in name.platforms:
        assert int(platform.split("_")[2]) >= need.minor


def test_the_library_names_no_folder_of_the_build(built_wheel: Path) -> None:
    with zipfile.ZipFile(built_wheel) as archive:
        data = archive.read(LIBRARY)
    assert b".lmsbuild-" not in data
    assert str(Path.home()).encode() + b"/" not in data


def test_pip_is_content(lms_python: Path) -> None:
    done = subprocess.run([lms_python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "No broken requirements found.\n")


def test_it_imports_and_says_its_version(lms_python: Path, built_wheel: Path) -> None:
    program = "import torch; print(torch.__version__, torch.lms.is_enabled('cpu'), torch.cuda.get_enabled_lms())"
    done = subprocess.run([lms_python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(parse_name(built_wheel).version), "False", "False"]


def test_importing_torch_does_not_load_what_was_added(lms_python: Path) -> None:
    program = "import sys, torch; print('torch.lms' in sys.modules, 'libtorch_lms' in open('/proc/self/maps').read())"
    done = subprocess.run([lms_python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_packages_that_require_this_version_still_resolve(lms_python: Path, tmp_path: Path) -> None:
    requires = tmp_path / "needs_torch-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: needs-torch\nVersion: 1.0\nRequires-Dist: torch==2.13.0\n"
    files = {
        "needs_torch.py": b"import torch\n",
        "needs_torch-1.0.dist-info/METADATA": metadata.encode(),
        "needs_torch-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [[name, record_hash(data), str(len(data))] for name, data in files.items()]
    record = io.StringIO()
    csv.writer(record).writerows([*rows, ["needs_torch-1.0.dist-info/RECORD", "", ""]])
    with zipfile.ZipFile(requires, "w") as archive:
        for name, data in {**files, "needs_torch-1.0.dist-info/RECORD": record.getvalue().encode()}.items():
            archive.writestr(name, data)
    words = [lms_python, "-m", "pip", "install", "--no-index", "--dry-run", "--no-input", requires]
    environment = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "Would install needs-torch-1.0" in done.stdout
    assert "Requirement already satisfied: torch==2.13.0" in done.stdout


def test_the_committed_patch_is_what_its_sources_generate(base_wheel: Path) -> None:
    done = _tool("generate", TAG.name, "--base-wheel", base_wheel, "--check")
    assert done.returncode == 0, done.stderr


def test_every_edited_file_is_upstreams_own(base_wheel: Path) -> None:
    patch = read_patch(PATCHES / TAG.patch_name)
    assert dict(patch.edited) == dict(TAG.blobs)
    with WheelFile(base_wheel) as wheel:
        assert {name: blob_hash(wheel.read(name)) for name in patch.edited} == dict(patch.edited)
        assert f"git_version = '{TAG.commit}'" in wheel.read("torch/version.py").decode()


def test_git_am_applies_the_committed_patch(base_wheel: Path, tmp_path: Path, built_wheel: Path) -> None:
    patch = read_patch(PATCHES / TAG.patch_name)
    tree = tmp_path / "tree"
    with WheelFile(base_wheel) as wheel:
        for name in patch.edited:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(wheel.read(name))
    git = ["git", "-C", tree, "-c", "user.name=Someone", "-c", "user.email=someone@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*git, *words], check=True)
    am = subprocess.run([*git, "am", patch.path], capture_output=True, text=True, check=False)
    assert am.returncode == 0, am.stderr
    assert "whitespace" not in am.stderr
    with zipfile.ZipFile(built_wheel) as archive:
        for name in (*patch.edited, *patch.added):
            if name.startswith("torch/"):
                assert (tree / name).read_bytes() == archive.read(name), name


def test_the_edits_are_few_and_only_add(base_wheel: Path) -> None:
    """The smallest edits: no line of an existing file is removed or changed."""
    text = (PATCHES / TAG.patch_name).read_text()
    for part in text.split("diff --git ")[1:]:
        lines = part.split("\n-- \n")[0].splitlines()
        if "new file mode" in part:
            continue
        removed = [line for line in lines if line.startswith("-") and not line.startswith("---")]
        added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
        assert removed == []
        assert len(added) <= 20
