"""docs/manual-apply.md: its commands, run as they stand, on upstream's real tree.

Two programs are stood in for: `git clone` of GitHub gives Debian's copy of the tree, with the tag on it, and `python`, which
would build for hours, writes down what it was asked. Between the sections the test does what a user does: it commits, and
brings a later version of the patch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.full import plan
from lmsbuild.git_command import blob_hash
from lmsbuild.patch.patch import find_patch

pytestmark = pytest.mark.build  # fetches upstream's files

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "manual-apply.md").read_text()
CLONE = re.compile(r"^git clone .* https://github\.com/pytorch/pytorch$", re.MULTILINE)
PYTHON = '#!/bin/sh\necho "$PYTORCH_BUILD_VERSION $MAX_JOBS $CMAKE_TOOLCHAIN_FILE: $*" >> "$ASKED"\nmkdir -p dist\n'

# A commit more, as the next version of a patch may have it.
LATER = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Someone <someone@localhost>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH] Later

---
diff --git a/torch/lms/later.txt b/torch/lms/later.txt
new file mode 100644
--- /dev/null
+++ b/torch/lms/later.txt
@@ -0,0 +1 @@
+later
"""


def _sections() -> dict[str, str]:
    """The commands of each section."""
    found = {}
    for section in re.split(r"(?m)^## ", PAGE)[1:]:
        found[section.partition("\n")[0]] = "\n".join(re.findall(r"(?ms)^```sh\n(.*?)^```$", section))
    return found


def test_every_command_is_run_by_the_test_below() -> None:
    assert [name for name, commands in _sections().items() if commands] == [
        "Get the source",
        "Apply",
        "Build",
        "Build Debian's source",
        "Update to a later patch",
        "Take it off",
        "TensorFlow",
    ]
    assert PAGE.count("```sh\n") * 2 == PAGE.count("```")
    assert len(CLONE.findall(PAGE)) == 1


@pytest.mark.parametrize("tag", ["v2.6.0", pytest.param("v1.13.1", marks=pytest.mark.release)])
def test_the_commands_of_the_page(tag: str, debian_tree: Callable[[str], Path], tmp_path: Path) -> None:
    patches = paths.patches_folder()
    patch = find_patch(patches, catalogue.find_tag(patches, tag, "pytorch"))
    own = tmp_path / "large-model-support/patches"
    for folder in ("series", tag):
        shutil.copytree(patches / "pytorch" / folder, own / "pytorch" / folder, symlinks=True)
    (tmp_path / "later.patch").write_text(LATER)
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs/python").write_text(PYTHON)
    (tmp_path / "programs/python").chmod(0o755)

    commands = _sections()
    assert "tag=v2.6.0\n" in commands["Get the source"]
    begin = commands["Get the source"].replace("tag=v2.6.0\n", f"tag={tag}\n")
    tree = debian_tree(f"pytorch:{tag}")
    begin = CLONE.sub(f"git clone --quiet '{tree}' pytorch && git -C pytorch tag {tag}", begin)
    script = [
        "set -e",
        begin,
        commands["Apply"],
        'test -z "$(git status --porcelain)"; git rev-parse HEAD > ../applied; ls ../plain/torch/lms > ../plain-files',
        "for name in . ../queue ../joined; do git -C $name rev-parse 'HEAD^{tree}'; done > ../trees",
        commands["Build"],
        "echo mine > mine.txt; git add mine.txt; git commit --quiet -m mine; cp ../later.patch $patches/0007-later.patch",
        commands["Update to a later patch"],
        f"test -f torch/lms/later.txt -a -f mine.txt; git log --format=%s {tag}.. > ../updated; rm $patches/0007-*",
        commands["Take it off"],
        f"git log --format=%s {tag}.. > ../left; git diff --stat {tag} -- > ../differs; git tag > ../tags",
    ]
    identity = {f"GIT_{who}_{what}": "someone" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={
            **os.environ,
            **identity,
            "ASKED": str(tmp_path / "asked"),
            "PATH": os.pathsep.join([str(tmp_path / "programs"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    applied = (tmp_path / "applied").read_text().strip()
    for path, blob in patch.result.items():
        shown = subprocess.run(
            ["git", "-C", tmp_path / "pytorch", "show", f"{applied}:{path}"], capture_output=True, check=True
        )
        assert blob_hash(shown.stdout) == blob, path
    assert "is already applied to ." in done.stdout
    assert len(set((tmp_path / "trees").read_text().split())) == 1  # by git am, git quiltimport, and from one file
    assert "__init__.py" in (tmp_path / "plain-files").read_text().split()
    assert (tmp_path / "asked").read_text().splitlines() == [
        "  : -m pip install -r requirements.txt",
        f"{tag[1:]}+lms1 4 : setup.py bdist_wheel",
    ]
    updated = (tmp_path / "updated").read_text().splitlines()
    assert updated[:2] == ["mine", "Later"] and len(updated) > 3
    assert (tmp_path / "left").read_text() == "mine\n"
    assert (tmp_path / "differs").read_text().split()[0] == "mine.txt"
    assert (tmp_path / "tags").read_text() == f"{tag}\n"
    assert not (tmp_path / "plain/torch/lms").exists()
    for path in patch.edited:
        assert blob_hash((tmp_path / "plain" / path).read_bytes()) == patch.edited[path]


def test_the_commands_for_debians_source(tmp_path: Path) -> None:
    """The first prints the second's plan, on any machine, and only that builds."""
    plain, build = _sections()["Build Debian's source"].splitlines()
    assert plain == f"{build} --dry-run"
    words = [Path(sys.executable).with_name("lmsbuild"), *plain.split()[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " setup.py bdist_wheel\n" in done.stdout and "USE_SYSTEM_LIBS=ON" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_toolchain_file_is_for_classic_tags() -> None:
    line = next(line for line in _sections()["Build"].splitlines() if line.startswith("case "))
    for tag in ("v1.1.0", "v1.3.1", "v1.4.0", "v1.5.0", "v1.10.2", "v1.13.1", "v2.1.0", "v2.13.0"):
        shown = subprocess.run(
            ["bash", "-c", f'tag={tag}; lms=there; {line}; echo "$CMAKE_TOOLCHAIN_FILE"'],
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "CMAKE_TOOLCHAIN_FILE"},
            check=True,
        )
        expected = "there/patches/catalogue/pytorch/cxx14.cmake" if tag in ("v1.1.0", "v1.3.1", "v1.4.0") else ""
        assert shown.stdout.strip() == expected, tag
    assert (ROOT / "patches/catalogue/pytorch/cxx14.cmake").is_file()


def test_the_settings_of_later_tensorflow_builds_are_those_of_a_full_build() -> None:
    commands = plan.read_recipe(paths.patches_folder(), "tensorflow").commands
    settings = {word for command in commands for word in command.words if word.startswith("--repo_env=")}
    assert settings == set(re.findall(r"`(--repo_env=\S+)`", PAGE)) != set()


# Each program writes down what it was asked, and leaves what the next one needs.
_ASKED = 'echo "${0##*/} $*" >> "$ASKED"\n'
BAZEL_PROGRAMS = {
    "python": f"#!/bin/sh\n{_ASKED}",
    "bazel": f"#!/bin/sh\n{_ASKED}mkdir -p bazel-bin/tensorflow/tools/pip_package\n"
    'cp "$PROGRAMS/pack" bazel-bin/tensorflow/tools/pip_package/build_pip_package\n',
    "pack": f'#!/bin/sh\n{_ASKED}mkdir "$1"; touch "$1/tensorflow-2.14.1-cp311-cp311-linux_x86_64.whl"\n',
    "lmsbuild": f"#!/bin/sh\n{_ASKED}",
}


def test_the_commands_for_tensorflow(debian_tree: Callable[[str], Path], tmp_path: Path) -> None:
    patches = paths.patches_folder()
    tree = debian_tree("tensorflow:v2.14.1")
    shutil.copytree(patches / "tensorflow", tmp_path / "large-model-support/patches/tensorflow", symlinks=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    for program, text in BAZEL_PROGRAMS.items():
        (programs / program).write_text(text)
        (programs / program).chmod(0o755)
    commands, count = re.subn(
        r"(?m)^git clone .* https://github\.com/tensorflow/tensorflow$",
        f"git clone --quiet '{tree}' tensorflow",
        _sections()["TensorFlow"],
    )
    assert count == 1
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PROGRAMS": str(programs),
        "ASKED": str(tmp_path / "asked"),
        **{f"GIT_{who}_{what}": "x@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(
        ["bash", "-e"], input=commands, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text().splitlines() == [
        "python configure.py",
        "bazel build --jobs=4 --local_ram_resources=12288 //tensorflow/tools/pip_package:build_pip_package",
        "build_pip_package dist",
        "lmsbuild tensorflow v2.14.1 --base dist/tensorflow-2.14.1-cp311-cp311-linux_x86_64.whl --output dist",
    ]
    result = find_patch(patches, catalogue.find_tag(patches, "v2.14.1", "tensorflow")).result
    found = {path: blob_hash((tmp_path / "tensorflow" / path).read_bytes()) for path in result}
    assert found == dict(result)
