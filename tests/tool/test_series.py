"""Making a .patch file from its sources."""

from __future__ import annotations

import os
import subprocess

import pytest

import synthetic
from lmsbuild.errors import BadSources
from lmsbuild.patch import read_patch
from lmsbuild.series import Edit, apply_edits, generate
from workshop import Workshop

ORIGINALS = {"torch/__init__.py": synthetic.INIT, "torch/cuda/__init__.py": synthetic.CUDA_INIT}


def _generate(workshop: Workshop) -> bytes:
    return generate(workshop.patches, workshop.tag, ORIGINALS)


def test_the_series_has_the_commits_in_order_and_touches_what_it_says(workshop: Workshop) -> None:
    text = _generate(workshop).decode()
    subjects = [line for line in text.splitlines() if line.startswith("Subject: ")]
    assert subjects == [
        "Subject: [PATCH 1/4] Add the pager",
        "Subject: [PATCH 2/4] Add the glue",
        "Subject: [PATCH 3/4] Add Python",
        "Subject: [PATCH 4/4] Add tests",
    ]
    patch = read_patch(workshop.patches / workshop.tag.patch_name)
    assert dict(patch.edited) == workshop.tag.blobs
    assert set(patch.added) == {
        "aten/src/ATen/lms/pager.h",
        "aten/src/ATen/LmsPager.cpp",
        "aten/src/ATen/LmsTorch.cpp",
        "torch/lms/__init__.py",
        "test/test_lms.py",
    }


def test_the_bytes_do_not_depend_on_who_generates(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _generate(workshop)
    home = workshop.folder / "home"
    home.mkdir()
    settings = {
        "user.name": "Someone",
        "user.email": "someone@example.invalid",
        "diff.noprefix": "true",
        "diff.algorithm": "patience",
        "diff.context": "9",
        "diff.renames": "copies",
        "format.signature": "mine",
        "format.subjectPrefix": "MINE",
        "format.numbered": "false",
        "format.headers": "X-Mine: yes",
        "core.abbrev": "7",
        "core.autocrlf": "true",
        "commit.gpgsign": "true",
        "i18n.commitEncoding": "latin1",
        "core.hooksPath": str(home),
    }
    hook = home / "pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    for name, value in settings.items():
        subprocess.run(["git", "config", "--file", home / ".gitconfig", name, value], check=True)
    for name, value in {
        "HOME": str(home),
        "TZ": "Asia/Tokyo",
        "COLUMNS": "200",
        "LANG": "C",
        "GIT_AUTHOR_NAME": "Someone else",
        "GIT_DIR": str(home),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.mnemonicPrefix",
        "GIT_CONFIG_VALUE_0": "true",
    }.items():
        monkeypatch.setenv(name, value)
    assert _generate(workshop) == expected


def test_git_am_applies_the_series_and_gives_the_sources(workshop: Workshop) -> None:
    tree = workshop.folder / "tree"
    for name, data in ORIGINALS.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    environment = {
        **os.environ,
        **{f"GIT_{role}_{key}": f"{key}@x" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
    }
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run(["git", "-C", tree, *words], check=True, env=environment)
    patch = workshop.patches / workshop.tag.patch_name
    subprocess.run(["git", "-C", tree, "am", "-q", patch], check=True, env=environment)
    assert (tree / "torch/__init__.py").read_text().count('    "_export",\n    "lms",\n') == 1
    assert (tree / "torch/cuda/__init__.py").read_text() == '__all__ = [\n    "get_enabled_lms",\n    "init",\n]\n'
    assert (tree / "aten/src/ATen/LmsTorch.cpp").read_bytes() == synthetic.TORCH_SOURCE
    log = ["git", "-C", tree, "log", "--format=%an <%ae> %ad %b", "--date=unix", "-1", "HEAD~1"]
    assert subprocess.run(log, capture_output=True, text=True, check=True).stdout.startswith(
        "Large Model Support <lms@users.noreply.github.com> 1767225603 Several\nlines."
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("edits.toml", '    "_export",\n', '    "_exports",\n', "occurs 0 times"),
        ("edits.toml", '    "_export",\n', "    # twice\n", "occurs 2 times"),
        ("edits.toml", "    \"lms\",\n'''", "    \"lms\",'''", "not whole lines"),
        ("edits.toml", 'path = "torch/__init__.py"', 'path = "torch/other.py"', r"torch/other\.py"),
        ("edits.toml", "[[edit]]", 'ignored = 0\n[[edit]]\ntags = ["v1.0"]', r"no edit changes"),
        ("series.toml", 'paths = ["test/"]', 'paths = ["tests/"]', r"test/test_lms\.py belongs to no commit"),
        ("series.toml", '"aten/src/ATen/lms/", "aten/src/ATen/LmsPager.cpp"', '"nothing/"', "has no file"),
        (
            "tags.toml",
            '[tag.blobs]\n"torch/__init__.py" = "',
            '[tag.blobs]\n"torch/__init__.py" = "00',
            "not upstream's",
        ),
    ],
)
def test_sources_that_do_not_fit_are_refused(workshop: Workshop, file: str, old: str, new: str, message: str) -> None:
    path = workshop.patches / "pytorch" / file
    assert old in path.read_text()
    synthetic.edit_file(path, lambda text: text.replace(old, new, 1))
    with pytest.raises(BadSources, match=message):
        _generate(workshop)


BLOCKS = b"""class First:
    x: int = 0

    def call(self) -> None:
        pass


class Second(First):
    # A comment at
# the margin does not end it.
    def call(self) -> None:
        pass

    def other(
        self,
) -> None:
        pass
"""


def _edit(within: str, anchor: str) -> Edit:
    return Edit(path="a.py", within=within, anchor=anchor, before="    @mark\n", after="", tags=())


@pytest.mark.parametrize("name", ["class First:\n", "class Second(First):\n"])
def test_an_anchor_may_occur_in_each_block(name: str) -> None:
    edit = _edit(name, "    def call(self) -> None:\n")
    edited = apply_edits([edit], {"a.py": BLOCKS})["a.py"].decode()
    assert edited.replace("    @mark\n", "", 1).encode() == BLOCKS
    before, _, after = edited.partition("    @mark\n")
    assert ("class Second" in before) is ("Second" in name)
    assert after.startswith("    def call")


@pytest.mark.parametrize(
    ("within", "anchor", "message"),
    [
        ("", "    def call(self) -> None:\n", "occurs 2 times.*def call"),
        ("class Second(First):\n", "    x: int = 0\n", "occurs 0 times.*x: int"),
        ("class First:\n", "    def other(\n", "occurs 0 times.*def other"),
        ("class Third:\n", "    def call(self) -> None:\n", "occurs 0 times.*class Third"),
        ("class First:", "    x: int = 0\n", "not whole lines"),
    ],
)
def test_an_anchor_that_is_not_in_its_block_is_refused(within: str, anchor: str, message: str) -> None:
    with pytest.raises(BadSources, match=message):
        apply_edits([_edit(within, anchor)], {"a.py": BLOCKS})


def test_leftovers_of_the_interpreter_stay_out(workshop: Workshop) -> None:
    expected = _generate(workshop)
    leftover = workshop.patches / "pytorch/files/torch/lms/__pycache__/__init__.cpython-311.pyc"
    leftover.parent.mkdir()
    leftover.write_bytes(b"\0\1")
    assert _generate(workshop) == expected


def test_generate_writes_and_check_compares(workshop: Workshop) -> None:
    patch = workshop.patches / workshop.tag.patch_name
    words = ("generate", "v2.13.0", "--base-wheel", workshop.base)
    assert workshop.run(*words, "--check").returncode == 0
    source = workshop.patches / "pytorch/files/torch/lms/__init__.py"
    source.write_text("changed = True\n")
    before = patch.read_bytes()
    stale = workshop.run(*words, "--check")
    assert (stale.returncode, patch.read_bytes()) == (20, before)
    assert "run `lmsbuild generate v2.13.0`" in stale.stderr
    made = workshop.run(*words)
    assert (made.returncode, made.stdout.strip()) == (0, str(patch))
    assert workshop.run(*words, "--check").returncode == 0
    patch.unlink()
    assert workshop.run(*words, "--check").returncode == 20
