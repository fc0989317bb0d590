"""Making a .patch file from its sources."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

import synthetic
from lmsbuild import blobs, rows
from lmsbuild.errors import BadSources
from lmsbuild.patch import read_patch
from lmsbuild.series import Edit, apply_edits, generate, new_files, read_edits, read_series
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
        "torch/lms/_library.py",
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
        ("edits.toml", "[[edit]]", 'ignored = 0\n[[edit]]\nuntil = "v1.0"', r"no edit changes"),
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
    path = workshop.patches / "catalogue/pytorch" / file
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
    return Edit(path="a.py", within=within, anchor=anchor, before="    @mark\n", after="", since="", until="")


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


@pytest.mark.parametrize(
    ("since", "until", "applies"),
    [
        ("v2.13.0", "", True),
        ("", "v2.13.0", True),
        ("v2.9.1", "v2.13.1", True),
        ("v2.13.1", "", False),
        ("", "v2.9.0", False),
    ],
)
def test_an_edit_is_for_a_range_of_tags(workshop: Workshop, since: str, until: str, applies: bool) -> None:
    """By number: 2.9 is before 2.13."""
    bounds = "".join(f'{key} = "{value}"\n' for key, value in (("since", since), ("until", until)) if value)
    edits = workshop.patches / "catalogue/pytorch/edits.toml"
    synthetic.edit_file(edits, lambda text: text.replace("[[edit]]\n", f"[[edit]]\n{bounds}", 1))
    paths = [edit.path for edit in read_edits(workshop.patches, workshop.tag)]
    assert paths == (["torch/__init__.py"] if applies else []) + ["torch/cuda/__init__.py"]


def test_a_bound_that_is_no_tag_is_refused(workshop: Workshop) -> None:
    edits = workshop.patches / "catalogue/pytorch/edits.toml"
    synthetic.edit_file(edits, lambda text: text.replace("[[edit]]\n", '[[edit]]\nsince = "latest"\n', 1))
    with pytest.raises(BadSources, match="'latest' is not a tag such as"):
        _generate(workshop)


ONLY = """
[[only]]
path = "aten/src/ATen/LmsTorch.cpp"
generations = ["1.1"]
"""


def test_a_generation_has_files_and_libraries_of_its_own(workshop: Workshop) -> None:
    series = workshop.patches / "catalogue/pytorch/series.toml"
    synthetic.edit_file(series, lambda text: text.replace("torch_cpu = []", 'torch_cpu = ["torch", "caffe2"]') + ONLY)
    path = "aten/src/ATen/LmsTorch.cpp"
    older = replace(workshop.tag, generation="1.1")
    (new,), (old,) = (read_series(workshop.patches, tag).graft.libraries for tag in (workshop.tag, older))
    assert (path in new.sources, path in old.sources) == (False, True)
    assert (new.link, old.link) == (("torch_cpu", "c10"), ("torch", "caffe2", "c10"))
    assert path not in new_files(workshop.patches, workshop.tag)
    assert path in new_files(workshop.patches, older)


@pytest.mark.parametrize(("old", "new"), [('name = "2.0"', 'name = "2.1"'), ('["1.1"]', '["1.1", "2.1"]')])
def test_a_generation_that_is_not_listed_is_refused(workshop: Workshop, old: str, new: str) -> None:
    series = workshop.patches / "catalogue/pytorch/series.toml"
    synthetic.edit_file(series, lambda text: (text + ONLY).replace(old, new))
    with pytest.raises(BadSources, match=r"generation '2\.[01]', which (it|series\.toml) does not list"):
        read_series(workshop.patches, workshop.tag)


def test_generate_takes_many_tags(workshop: Workshop) -> None:
    second = replace(workshop.tag, name="v2.14.0", version="2.14.0")
    rows.write(workshop.patches, second)
    blobs.store(workshop.cache, second.blobs, ORIGINALS)  # no wheel is asked for what the cache has
    made = workshop.run("generate", "--all")
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.splitlines()) == 2
    patches = [(workshop.patches / tag.patch_name).read_bytes() for tag in (workshop.tag, second)]
    assert patches[0] == patches[1]
    assert workshop.run("generate", "v2.13.0", "v2.14.0", "--check").returncode == 0
    (workshop.patches / second.patch_name).unlink()
    assert workshop.run("generate", "--all", "--check").returncode == 20
    assert workshop.run("generate").returncode == 2
    assert workshop.run("generate", "--all", "--base-wheel", workshop.base).returncode == 2


def test_leftovers_of_the_interpreter_stay_out(workshop: Workshop) -> None:
    expected = _generate(workshop)
    leftover = workshop.patches / "src/pytorch/torch/lms/__pycache__/__init__.cpython-311.pyc"
    leftover.parent.mkdir()
    leftover.write_bytes(b"\0\1")
    assert _generate(workshop) == expected


def test_generate_writes_and_check_compares(workshop: Workshop) -> None:
    patch = workshop.patches / workshop.tag.patch_name
    words = ("generate", "v2.13.0", "--base-wheel", workshop.base)
    assert workshop.run(*words, "--check").returncode == 0
    source = workshop.patches / "src/pytorch/torch/lms/__init__.py"
    source.write_text("changed = True\n")
    before = patch.read_bytes()
    stale = workshop.run(*words, "--check")
    assert (stale.returncode, patch.read_bytes()) == (20, before)
    assert "run `lmsbuild generate pytorch:v2.13.0`" in stale.stderr
    made = workshop.run(*words)
    assert (made.returncode, made.stdout.strip()) == (0, str(patch))
    assert workshop.run(*words, "--check").returncode == 0
    patch.unlink()
    assert workshop.run(*words, "--check").returncode == 20
