"""Making the patches from their sources."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace

import pytest

import synthetic
from lmsbuild.catalogue import rows
from lmsbuild.errors import BadSources, NoSuchFile, OutputNotWritable, StalePatch
from lmsbuild.fetch import blobs
from lmsbuild.patch import generate
from lmsbuild.patch.edits import Edit, apply_edits, read_edits
from lmsbuild.patch.patch import find_patch
from lmsbuild.patch.series import new_files, read_series
from workshop import Workshop

ORIGINALS = {"torch/__init__.py": synthetic.INIT, "torch/cuda/__init__.py": synthetic.CUDA_INIT}


def _generate(workshop: Workshop) -> generate.Wanted:
    """The series, the links and the hook."""
    patches, tag = workshop.patches, workshop.tag
    return generate.series(patches, tag.framework) | generate.hook(patches, tag, ORIGINALS)


def test_the_series_has_the_commits_in_order_and_touches_what_it_says(workshop: Workshop) -> None:
    made = {path.relative_to(workshop.patches).as_posix(): content for path, content in _generate(workshop).items()}
    names = ("0001-Add-the-pager", "0002-Add-the-glue", "0003-Add-Python", "0004-Add-tests")
    files = [f"pytorch/series/{name}.patch" for name in names] + ["pytorch/v2.13.0/0005-call-lms.patch"]
    texts = [made.pop(name) for name in files]
    subjects = [re.findall(rb"(?m)^Subject: (.*)$", text) for text in texts if isinstance(text, bytes)]
    expected = [b"Add the pager", b"Add the glue", b"Add Python", b"Add tests", b"Call it"]
    assert subjects == [[b"[PATCH] " + subject] for subject in expected]
    assert made == {f"pytorch/v2.13.0/{name}.patch": f"../series/{name}.patch" for name in names}
    patch = workshop.patch
    assert [path.relative_to(workshop.patches).as_posix() for path in patch.files] == files
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
    files = sorted((workshop.patches / "pytorch/v2.13.0").glob("*.patch"))
    subprocess.run(["git", "-C", tree, "am", "-q", *files], check=True, env=environment)
    assert (tree / "torch/__init__.py").read_text().count('    "_export",\n    "lms",\n') == 1
    assert (tree / "torch/cuda/__init__.py").read_text() == '__all__ = [\n    "get_enabled_lms",\n    "init",\n]\n'
    assert (tree / "aten/src/ATen/LmsTorch.cpp").read_bytes() == synthetic.TORCH_SOURCE
    log = ["git", "-C", tree, "log", "--format=%an <%ae> %ad %b", "--date=unix", "-1", "HEAD~2"]
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
        ("edits.toml", "[[edit]]", '[[edit]]\nuntil = "v1.0"', r"no edit changes"),
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
    assert len(made.stdout.splitlines()) == 5  # four links and a hook; the series is there
    patches = [find_patch(workshop.patches, tag) for tag in (workshop.tag, second)]
    assert patches[0].joined == patches[1].joined
    assert workshop.run("generate", "v2.13.0", "v2.14.0", "--check").returncode == 0
    patches[1].files[-1].unlink()
    assert workshop.run("generate", "--all", "--check").returncode == 20
    assert workshop.run("generate", "--all", "--base-wheel", workshop.base).returncode == 2


def test_leftovers_of_the_interpreter_stay_out(workshop: Workshop) -> None:
    expected = _generate(workshop)
    leftover = workshop.patches / "src/pytorch/torch/lms/__pycache__/__init__.cpython-311.pyc"
    leftover.parent.mkdir()
    leftover.write_bytes(b"\0\1")
    assert _generate(workshop) == expected


def test_generate_writes_and_check_compares(workshop: Workshop) -> None:
    patch = workshop.patches / "pytorch/series/0003-Add-Python.patch"
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


def test_the_series_alone_needs_no_wheel_and_no_tag(workshop: Workshop) -> None:
    """A change of an added file is generated offline: one file, whatever the number of tags."""
    offline = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1"}
    second = replace(workshop.tag, name="v2.14.0", version="2.14.0")
    rows.write(workshop.patches, second)
    generate.write(generate.hook(workshop.patches, second, ORIGINALS))
    assert len(workshop.run("generate", environment=offline).stdout.splitlines()) == 4  # the links of the new tag
    (workshop.patches / "src/pager/pager.h").write_text("#pragma once\n// more\n")
    stale = workshop.run("generate", "--check", environment=offline)
    assert (stale.returncode, "run `lmsbuild generate`" in " ".join(stale.stderr.split())) == (20, True)
    made = workshop.run("generate", environment=offline)
    assert made.stdout.splitlines() == [str(workshop.patches / "pytorch/series/0001-Add-the-pager.patch")]
    assert workshop.run("generate", "--check", environment=offline).returncode == 0


def test_generations_with_other_files_have_a_patch_of_their_own(workshop: Workshop) -> None:
    path = workshop.patches / "src/pytorch/aten/src/ATen/LmsOld.cpp"
    path.write_text("int old;\n")
    only = '\n[[only]]\npath = "aten/src/ATen/LmsOld.cpp"\ngenerations = ["1.1"]\n'
    synthetic.edit_file(workshop.patches / "catalogue/pytorch/series.toml", lambda text: text + only)
    rows.write(workshop.patches, replace(workshop.tag, name="v1.1.0", version="1.1.0", generation="1.1"))
    generate.write(generate.series(workshop.patches, "pytorch"))
    series = sorted(file.name for file in (workshop.patches / "pytorch/series").iterdir())
    glue = ["0002-Add-the-glue-1.1.patch", "0002-Add-the-glue-2.0.patch"]
    assert series == ["0001-Add-the-pager.patch", *glue, "0003-Add-Python.patch", "0004-Add-tests.patch"]
    assert all(
        (workshop.patches / "pytorch" / place).is_file() for place in (f"v1.1.0/{glue[0]}", f"v2.13.0/{glue[1]}")
    )
    assert b"LmsOld.cpp" in (workshop.patches / "pytorch/v1.1.0" / glue[0]).read_bytes()
    assert b"LmsOld.cpp" not in workshop.patch.joined


def test_what_no_source_gives_any_more_is_removed(workshop: Workshop) -> None:
    folder = workshop.patches / "pytorch"
    (folder / "series/0009-Gone.patch").write_text("gone\n")
    (folder / "v2.12.0").mkdir()
    (folder / "v2.12.0/0009-Gone.patch").symlink_to("../series/0009-Gone.patch")
    (folder / "v2.13.0/0001-Add-the-pager.patch").unlink()
    assert workshop.run("generate", "--check").returncode == 20
    assert len(workshop.run("generate").stdout.splitlines()) == 3
    assert not (folder / "series/0009-Gone.patch").exists() and not (folder / "v2.12.0").exists()
    assert (folder / "v2.13.0/0001-Add-the-pager.patch").is_symlink()
    assert workshop.run("generate", "--check").returncode == 0


def test_a_tag_without_edits_has_no_hook(workshop: Workshop) -> None:
    hook = workshop.patch.files[-1]
    (workshop.patches / "catalogue/pytorch/edits.toml").write_text("edit = []\n")
    rows.write(workshop.patches, replace(workshop.tag, blobs={}))
    assert generate.write(generate.hook(workshop.patches, workshop.tag, {})) == [hook]
    assert not hook.exists() and len(workshop.patch.files) == 4


def test_the_patches_of_a_tag_join_to_one_file(workshop: Workshop) -> None:
    made = workshop.run("patches", "--output", "release/pages", "2.13.0", "v2.13.0")
    assert (made.returncode, made.stdout) == (0, "release/pages/pytorch_v2.13.0_large_model_support.patch\n")
    file = workshop.folder / made.stdout.strip()
    assert file.read_bytes() == workshop.patch.joined
    assert workshop.run("patches", "--output", "everything").stdout.count(".patch") == 1


def test_what_is_not_current_is_not_joined(workshop: Workshop) -> None:
    first, *_, hook = workshop.patch.files
    synthetic.edit_file(first, lambda text: text + "damaged\n")
    assert workshop.run("patches", "--output", "broken").returncode == StalePatch.exit_code
    assert workshop.run("generate").returncode == 0
    hook.unlink()
    lacking = workshop.run("patches", "--output", "broken")
    assert lacking.returncode == NoSuchFile.exit_code
    assert "`lmsbuild generate pytorch:v2.13.0` makes it" in " ".join(lacking.stderr.split())
    assert not (workshop.folder / "broken").exists()


@pytest.mark.parametrize("output", ["a file", "a file/below it", "/proc/none"])
def test_an_output_that_is_no_folder_is_one_sentence(workshop: Workshop, output: str) -> None:
    (workshop.folder / "a file").touch()
    refused = workshop.run("patches", "--output", output)
    assert refused.returncode == OutputNotWritable.exit_code
    assert "cannot write" in refused.stderr and "Traceback" not in refused.stderr


def test_a_hook_that_is_gone_or_for_other_files_is_noticed(workshop: Workshop) -> None:
    hook = workshop.patch.files[-1]
    text = hook.read_text()
    for spoil in (lambda: hook.unlink(), lambda: hook.write_text(text.replace("index ", "index 0", 1))):
        spoil()
        for words in ((), ("--check",)):
            noticed = workshop.run("generate", *words)
            assert noticed.returncode == StalePatch.exit_code
            assert "run `lmsbuild generate pytorch:v2.13.0`" in " ".join(noticed.stderr.split())
    assert workshop.run("generate", "v2.13.0", "--base-wheel", workshop.base).returncode == 0
    assert hook.read_text() == text


def test_links_that_are_gone_are_noticed(workshop: Workshop) -> None:
    for path in (workshop.patches / "pytorch/v2.13.0").glob("000[1-4]-*"):
        path.unlink()
    assert workshop.run("generate", "--check").returncode == StalePatch.exit_code


@pytest.mark.parametrize("name", ["pager.h~", ".pager.h.swp", ".cache/clangd/i.idx", "#pager.h#"])
def test_what_editors_leave_behind_stays_out(workshop: Workshop, name: str) -> None:
    expected = _generate(workshop)
    path = workshop.patches / "src/pager" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0\1")
    assert _generate(workshop) == expected


@pytest.mark.parametrize("name", ["build/plain/a.o", "pager.h.orig", "notes.txt"])
def test_what_is_no_source_is_refused(workshop: Workshop, name: str) -> None:
    path = workshop.patches / "src/pager" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0\1")
    with pytest.raises(BadSources, match=f"{re.escape(str(path))} is no source of a patch"):
        _generate(workshop)
