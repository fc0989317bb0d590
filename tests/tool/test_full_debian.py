"""`--mode full --source debian` on a stand-in for Debian's source package, whose patches are those of the build."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

import synthetic
import upstream
from lmsbuild.errors import (
    BuildNotReady,
    BuildUnfinished,
    NoSuchRevision,
    PatchMismatch,
    SourceIncomplete,
    SourceUnreachable,
    WrongHash,
)
from lmsbuild.source import debian
from lmsbuild.wheel.wheel import file_sha256
from upstream import TAG, Upstream
from workshop import DRIVE, Workshop

pytestmark = pytest.mark.build  # builds in processes of their own

# Compiles a file of the patch, with a header that only Debian's tree has, and one that the build makes first.
SETUP = b"""\
import os, pathlib, subprocess, time
from setuptools import find_packages, setup

marks = pathlib.Path(os.environ["USE_MARKS"])
if not os.path.exists("build/pager.o"):
    with (marks / "compiled").open("a") as file:
        file.write("pager\\n")
    os.makedirs("build", exist_ok=True)
    include = ["-Iaten/src", "-Ithird_party/part", "-I."]
    subprocess.check_call(["c++", *include, "-fPIC", "-c", "first.cpp", "-o", "build/first.o"])
    subprocess.check_call(["c++", *include, "-fPIC", "-c", "aten/src/ATen/LmsPager.cpp", "-o", "build/pager.o"])
(marks / "compiled-once").touch()
while (marks / "wait").exists():
    time.sleep(0.05)
subprocess.check_call(["c++", "-shared", "-o", "torch/libtorch.so", "build/first.o", "build/pager.o"])
setup(
    name="torch",
    version=os.environ["PYTORCH_BUILD_VERSION"],
    packages=find_packages(include=["torch*"]),
    package_data={"torch": ["*.so"]},
    has_ext_modules=lambda: True,
)
"""
FIRST = b'#include "part.h"\n#include "generated.h"\nint first() { return PART + GENERATED; }\n'
SYSTEM = """\
Description: take the part from the distribution.
--- pytorch.orig/setup.py
+++ pytorch/setup.py
@@ -8,3 +8,3 @@
     os.makedirs("build", exist_ok=True)
-    include = ["-Iaten/src", "-Ithird_party/part", "-I."]
+    include = ["-Iaten/src", "-Idebian/part", "-I."]
     subprocess.check_call(["c++", *include, "-fPIC", "-c", "first.cpp", "-o", "build/first.o"])
"""
VERSION = """\
--- pytorch.orig/setup.py
+++ pytorch/setup.py
@@ -17,3 +17,3 @@
     name="torch",
-    version=os.environ["PYTORCH_BUILD_VERSION"],
+    version="2.13.0+debian",
     packages=find_packages(include=["torch*"]),
"""
FULL = """\
programs = ["git"]
modules = ["setuptools"]
disk = 1
memory = 3
reads = ["CMAKE_", "MAX_JOBS", "PYTORCH_BUILD_VERSION", "USE_"]

[[command]]
words = ["{python}", "setup.py", "bdist_wheel"]
leaves = "dist"

[[environment]]
name = "PYTORCH_BUILD_VERSION"
value = "{version}+{label}"

[debian]
packages = ["dpkg"]
first = ["cp", "version.in", "generated.h"]

[debian.environment]
USE_SYSTEM_LIBS = "ON"
USE_PATCHES = "{patches}"
"""


@pytest.fixture
def there(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """The stand-in, of which Debian has a source package for the suite that this machine runs; no network is needed."""
    if not debian.suite():
        pytest.skip("needs Debian")
    files = {"setup.py": SETUP, "first.cpp": FIRST, "version.in": b"#define GENERATED 1\n"}
    made = upstream.make(workshop, files)
    (workshop.patches / "catalogue/pytorch/full.toml").write_text(FULL)
    orig = _pack(workshop, "pytorch_2.13.0+dfsg.orig.tar.xz", made.repository, "pytorch-2.13.0", leave=".git")
    added = workshop.folder / "added"
    for name, text in {
        "patches/series": "system.patch\n# a comment\n\nversion.patch\n",
        "patches/system.patch": SYSTEM,
        "patches/version.patch": VERSION,
        "part-1/part.h": "#define PART 1\n",
    }.items():
        (added / name).parent.mkdir(parents=True, exist_ok=True)
        (added / name).write_text(text)
    (added / "part").symlink_to("part-1")
    packaging = _pack(workshop, "pytorch_2.13.0+dfsg-1.debian.tar.xz", added, "debian")
    (workshop.patches / "catalogue/pytorch/source.toml").write_text(
        f"{upstream.SOURCE}\n"
        f'[debian."{TAG}"]\npackage = "pytorch"\nsuite = "{debian.suite()}"\n'
        f'file = "{orig.name}"\nsha256 = "{file_sha256(orig)}"\n'
        f'[debian."{TAG}".packaging]\nfile = "{packaging.name}"\nsha256 = "{file_sha256(packaging)}"\n'
        'without = ["version.patch"]\n'
    )
    (workshop.folder / "marks").mkdir()
    for name in [name for name in os.environ if name.startswith(("USE_", "CMAKE_", "PYTORCH_", "MAX_JOBS"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("USE_MARKS", str(workshop.folder / "marks"))
    return made


def _pack(workshop: Workshop, name: str, folder: Path, top: str, leave: str = "-") -> Path:
    """Packs the folder, but for what is called `leave`, to an archive in the cache, where it needs no fetching."""
    made = workshop.folder / name
    with tarfile.open(made, "w:xz") as packed:
        packed.add(folder, top, filter=lambda member: None if Path(member.name).name == leave else member)
    kept = workshop.cache / f"debian-{file_sha256(made)[:8]}" / name
    kept.parent.mkdir(parents=True)
    return made.rename(kept)


def _words(there: Upstream, *words: str) -> list[str | Path]:
    return ["pytorch", TAG, "--mode", "full", "--source", "debian", "--output", there.workshop.output, *words]


def _build(there: Upstream, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return there.run(*_words(there, *words), environment={**there.offline, **variables})


def _folder(there: Upstream) -> Path:
    return there.workshop.output / f"build-pytorch-{TAG}-{synthetic.TARGET.interpreter}"


def test_a_wheel_is_built_from_debians_tree(there: Upstream) -> None:
    done = _build(there)
    assert done.returncode == 0, done.stderr
    assert (
        "with the 1 patches of pytorch_2.13.0+dfsg-1.debian.tar.xz, by its sha256, without version.patch" in done.stderr
    )
    wheel = Path(done.stdout.strip())
    assert wheel.name.startswith("torch-2.13.0+lms1-")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("torch/lms/__init__.py") == b"def enable():\n    pass\n"
        assert "torch/libtorch.so" in archive.namelist()
    tree = _folder(there) / "source"
    assert upstream.git(tree, "describe", "--tags", "HEAD~2").startswith(TAG)
    assert (tree / "debian/part/part.h").is_file() and (tree / "debian/part").is_symlink()


def test_a_build_goes_on_where_it_was_interrupted(there: Upstream) -> None:
    marks = there.workshop.folder / "marks"
    (marks / "wait").touch()
    process = subprocess.Popen(
        [sys.executable, DRIVE, there.workshop.patches, "0", "-", *_words(there)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **there.offline, "LMSBUILD_CACHE": str(there.workshop.cache)},
    )
    with process:
        end = time.monotonic() + 120
        while not (marks / "compiled-once").exists():
            assert time.monotonic() < end and process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.wait(120)
    (marks / "wait").unlink()
    other = _build(there, "--resume", USE_SYSTEM_LIBS="OFF")
    assert other.returncode == BuildUnfinished.exit_code, other.stderr
    assert "was begun with USE_SYSTEM_LIBS ON, now it is OFF" in other.stderr
    upstreams = [str(word) for word in _words(there, "--resume") if word not in ("--source", "debian")]
    other = there.run(
        *upstreams, environment={**there.offline, "USE_SYSTEM_LIBS": "ON", "USE_PATCHES": str(there.workshop.patches)}
    )
    assert other.returncode == BuildUnfinished.exit_code, other.stderr
    assert "was begun with source pytorch_2.13.0+dfsg-1.debian.tar.xz, now it is not set" in other.stderr
    done = _build(there, "--resume")
    assert done.returncode == 0, done.stderr
    assert "source: done before" in done.stderr and "patch: done before" in done.stderr
    assert (marks / "compiled").read_text().split() == ["pager"], "what was compiled is not compiled again"


def test_the_plan_names_the_commands(there: Upstream) -> None:
    lines = [shlex.split(line) for line in _build(there, "--dry-run").stdout.splitlines()[1:]]
    tree = str(_folder(there) / "source")
    assert ["lmsbuild", "source", f"pytorch:{TAG}", tree, "--source", "debian", "--whole"] in lines
    builds = [line for line in lines if line[:1] == ["env"]]
    assert [line[-3:] for line in builds] == [
        ["cp", "version.in", "generated.h"],
        [sys.executable, "setup.py", "bdist_wheel"],
    ]
    assert f"USE_PATCHES={there.workshop.patches}" in builds[1] and "USE_SYSTEM_LIBS=ON" in builds[1]
    assert not there.workshop.output.exists()


def _edit(there: Upstream, file: str, old: str, new: str) -> None:
    assert old in (there.workshop.patches / "catalogue/pytorch" / file).read_text()
    synthetic.edit_file(there.workshop.patches / "catalogue/pytorch" / file, lambda text: text.replace(old, new))


def test_packages_and_a_suite_that_are_missing_are_said(there: Upstream) -> None:
    _edit(there, "full.toml", '"dpkg"', '"dpkg", "lmsbuild-none-such"')
    done = _build(there)
    assert done.returncode == BuildNotReady.exit_code, done.stderr
    assert "Debian's packages lmsbuild-none-such: `apt-get install lmsbuild-none-such`" in done.stderr
    _edit(there, "source.toml", f'suite = "{debian.suite()}"', 'suite = "potato"')
    done = _build(there)
    assert done.returncode == BuildNotReady.exit_code, done.stderr
    assert f"Debian potato: this machine runs {debian.suite()}" in done.stderr
    assert not there.workshop.output.exists()


def test_a_tag_that_debian_cannot_be_built_of_is_said(there: Upstream) -> None:
    file = there.workshop.patches / "catalogue/pytorch/source.toml"
    rows, packaging, _ = file.read_text().partition(f'[debian."{TAG}".packaging]')
    assert packaging
    for text, error, said in (
        (rows, SourceIncomplete, f"Debian's archive of pytorch:{TAG} is no whole tree"),
        (upstream.SOURCE, NoSuchRevision, f"Debian's archive has no pytorch:{TAG}"),
    ):
        file.write_text(text)
        for words in ([], ["--dry-run"]):
            done = _build(there, *words)
            assert done.returncode == error.exit_code, done.stderr
            assert said in done.stderr
    assert not there.workshop.output.exists()


def test_patches_of_debians_that_do_not_apply_leave_nothing(there: Upstream) -> None:
    _edit(there, "source.toml", 'without = ["version.patch"]', 'without = ["version.patch", "system.patch"]')
    assert _build(there, "--dry-run").returncode == 0
    tree = there.workshop.folder / "tree"
    done = there.run("source", TAG, tree, "--source", "debian", "--whole", environment=there.offline)
    assert done.returncode == 0 and "with the 0 patches" in done.stdout, done.stderr
    added = there.workshop.folder / "added"
    (added / "patches/system.patch").write_text(SYSTEM.replace("os.makedirs", "os.mkdir"))
    packaging = _pack(there.workshop, "pytorch_2.13.0+dfsg-2.debian.tar.xz", added, "debian")
    rows = (
        (there.workshop.patches / "catalogue/pytorch/source.toml").read_text().partition(f'[debian."{TAG}".packaging]')
    )
    (there.workshop.patches / "catalogue/pytorch/source.toml").write_text(
        f'{rows[0]}{rows[1]}\nfile = "{packaging.name}"\nsha256 = "{file_sha256(packaging)}"\nwithout = []\n'
    )
    done = there.run("source", TAG, tree / "other", "--source", "debian", "--whole", environment=there.offline)
    assert done.returncode == PatchMismatch.exit_code, done.stderr
    assert "Debian's system.patch of pytorch_2.13.0+dfsg-2.debian.tar.xz does not apply" in done.stderr
    assert not (tree / "other").exists()


def test_a_whole_tree_that_git_cannot_have_names_debians(there: Upstream) -> None:
    done = there.run("source", TAG, there.workshop.folder / "tree", "--whole", environment=there.offline)
    assert done.returncode == SourceUnreachable.exit_code, done.stderr
    assert f"On Debian {debian.suite()} there is --source debian" in done.stderr


def test_another_packaging_is_refused(there: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for apt-get, which leaves another file under the name that is asked for, and notes its words."""
    (tmp_path / "sources.list").write_text("deb local:/debian stable main\n")
    program = tmp_path / "programs/apt-get"
    program.parent.mkdir()
    packaging = debian.Packaging("a.debian.tar.xz", "0" * 64, ())
    package = debian.SourcePackage("pytorch", "testing", "a.orig.tar.xz", "1" * 64, packaging)
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\necho other > a.debian.tar.xz\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(WrongHash, match="a.debian.tar.xz from Debian's archive has the sha256"):
        debian.fetch_packaging(package, packaging, tmp_path / "cache", configured=tmp_path)
    assert (tmp_path / "asked").read_text().splitlines()[-1].endswith("source --download-only --diff-only pytorch")
