"""The command line: names, suggestions, exit codes, and what is said when the output is no terminal."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import synthetic
from lmsbuild import command, doctor, errors
from lmsbuild.errors import Failure, MachineNotReady
from lmsbuild.graft import compilation
from workshop import Workshop, found_only_in

CUDA_PACKAGE = f"nvidia_runtime-12.4.127-py3-none-manylinux2014_{synthetic.TARGET.machine}.whl"


def test_every_failure_has_an_exit_code_of_its_own() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    codes = [kind.exit_code for kind in kinds if issubclass(kind, Failure)]
    assert len(set(codes)) == len(codes) > 20
    assert not set(codes) & {0, 2, 128 + 2, 128 + 15}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["pytorhc", "v2.13.0"], 3, "there is no framework or command 'pytorhc'. Did you mean 'pytorch'?"),
        (["qqqq"], 3, "there is no framework or command 'qqqq'. `lmsbuild --help`"),
        (["pytorch", "v2.13.1"], 4, "there is no pytorch tag 'v2.13.1'. Did you mean 'v2.13.0'?"),
        (["pytorch", "nightly"], 4, "there is no pytorch tag 'nightly'. `lmsbuild list` shows them all."),
        (["patch", "v2.31.0", "."], 4, "Did you mean 'v2.13.0'?"),
        (["generate", "v2"], 4, "Did you mean 'v2.13.0'?"),
        (["pytorch", "v2.13.0", "--python", "three"], 6, "--python takes a version such as 3.12, not 'three'"),
        (["pytorch", "v2.13.0", "--platform", "linux-aarch65"], 6, "Did you mean 'linux-aarch64'?"),
        (["pytorch", "v2.13.0", "--base-wheel", "none.whl"], 7, "none.whl is not the name of a wheel"),
        (["try", "none.whl"], 26, "lmsbuild pytorch"),
        (["patch", "v2.13.0", "nowhere"], 17, "nowhere is no git checkout"),
        (["pytorch"], 2, "Missing argument 'TAG'"),
    ],
)
def test_wrong_words_are_answered_with_the_right_ones(
    workshop: Workshop, words: list[str], code: int, said: str
) -> None:
    done = workshop.run(*words)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_list_names_the_tags_and_what_they_support(workshop: Workshop) -> None:
    wheels = {synthetic.wheel_name(abi=abi): "0" * 64 for abi in ("cp312", "cp311")}
    synthetic.write_sources(workshop.patches, wheels)
    done = workshop.run("list")
    said = "pytorch v2.13.0: torch 2.13.0, pages tensors on cpu\n  official wheels for x86_64: cp311, cp312\n"
    assert (done.returncode, done.stdout) == (0, said)


def test_the_tag_may_be_given_without_its_letter(workshop: Workshop) -> None:
    done = workshop.run("pytorch", "2.13.0", "--base-wheel", workshop.base, "--output", workshop.output)
    assert done.returncode == 0


def test_a_piped_build_prints_the_wheel_and_no_progress_bar(workshop: Workshop) -> None:
    done = workshop.build()
    assert Path(done.stdout.strip()).is_file()
    assert done.stdout.count("\n") == 1
    stages = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert stages == ["base wheel", "verify", "patch", "compile", "graft", "check", "publish"]
    assert not {"\r", "\x1b", "━"} & set(done.stderr)
    assert "+ " not in done.stderr


def test_verbose_shows_every_command(workshop: Workshop) -> None:
    words = ("pytorch", "v2.13.0", "--base-wheel", workshop.base, "--output", workshop.output, "-v")
    commands = [line for line in workshop.run(*words).stderr.splitlines() if line.startswith("+ ")]
    assert {Path(line.split()[1]).name for line in commands} - {"ccache"} <= {"git", "g++"}
    assert any(" git " in line for line in commands)
    assert any("g++ " in line for line in commands)
    *objects, library = (
        line.split()[-1] for line in commands if " -o " in line and not {"-E", "'-###'"} & set(line.split())
    )
    # They are compiled at the same time.
    assert (sorted(objects), library) == (["LmsPager.o", "LmsTorch.o"], "-Wl,--strip-all")


def test_brackets_in_a_message_are_shown_as_they_are(workshop: Workshop) -> None:
    done = workshop.run("pytorch", "[bold]v1[/bold]")
    assert "'[bold]v1[/bold]'" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["list"], 0, "pytorch v2.13.0: torch 2.13.0"),
        (["conda", "pytorch", "v2.13.0", "--dry-run"], 0, "lmsbuild pytorch v2.13.0"),
        (["patch", "v2.13.0", "."], 25, "cannot run git"),
        (["generate", "v2.13.0"], 25, "cannot run git"),
    ],
)
def test_without_git_only_what_needs_it_fails(workshop: Workshop, words: list[str], code: int, said: str) -> None:
    subprocess.run(["git", "init", "--quiet", workshop.folder], check=True)
    done = workshop.run(*words, environment={"PATH": str(workshop.folder / "nowhere")})
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_is_content_with_a_machine_that_can_build(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _known_machine(workshop, monkeypatch)
    doctor.run(workshop.cache, workshop.output)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert all(line.startswith("ok ") for line in lines), lines
    assert not workshop.output.exists()


@pytest.mark.parametrize(
    ("spoil", "name", "remedy"),
    [
        ("compiler", "C++ compiler", "install"),
        ("standard", "C++ compiler", "install"),
        ("git", "git", "install"),
        ("registry", "pip", "pip config list"),
        ("version", "pip", "--base"),
        ("CUDA package", "CUDA headers", "only wheels for CUDA"),
        ("CUDA package's version", "CUDA headers", "only wheels for CUDA"),
        ("interpreter", "interpreter", "use one of cp39"),
        ("disk", "disk space for the output", "--output"),
    ],
)
def test_doctor_says_what_is_missing_and_what_mends_it(
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: str,
    name: str,
    remedy: str,
) -> None:
    _known_machine(workshop, monkeypatch)
    if spoil == "compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    elif spoil == "standard":
        tags = workshop.patches / "catalogue/pytorch/tags.toml"
        synthetic.edit_file(tags, lambda text: text.replace("c++17", "c++99"))
    elif spoil == "git":
        which = doctor.shutil.which
        monkeypatch.setattr(doctor.shutil, "which", lambda word: None if word == "git" else which(word))
    elif spoil == "registry":
        (workshop.folder / workshop.base.name).unlink()
    elif spoil == "version":
        workshop.base.rename(workshop.folder / synthetic.wheel_name("2.12.0"))
    elif spoil == "CUDA package":
        (workshop.folder / CUDA_PACKAGE).unlink()
    elif spoil == "CUDA package's version":
        (workshop.folder / CUDA_PACKAGE).rename(workshop.folder / CUDA_PACKAGE.replace("12.4.127", "12.4.1"))
    elif spoil == "interpreter":
        synthetic.write_sources(workshop.patches, {synthetic.wheel_name(abi="cp39"): "0" * 64})
    else:
        monkeypatch.setattr(doctor, "_OUTPUT_BYTES", 1 << 60)
    with pytest.raises(MachineNotReady, match="1 of the above"):
        doctor.run(workshop.cache, workshop.output)
    lines = capsys.readouterr().out.splitlines()
    missing = [index for index, line in enumerate(lines) if line.startswith("MISSING")]
    assert len(missing) == 1
    assert f" {name}: " in lines[missing[0]]
    assert remedy in lines[missing[0] + 1]


def test_doctor_starts_no_more_programs_for_more_tags_and_packages(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _known_machine(workshop, monkeypatch)
    started: list[list[str]] = []
    run = command.run

    def counted(words: Sequence[str | Path], **named: Any) -> command.Finished:
        started.append([str(word) for word in words])
        return run(words, **named)

    monkeypatch.setattr(command, "run", counted)
    doctor.run(workshop.cache, workshop.output)
    few = len(started)
    for version in ("2.12.0", "2.11.0"):
        shutil.copy(workshop.base, workshop.folder / synthetic.wheel_name(version))
    tags = workshop.patches / "catalogue/pytorch/tags.toml"
    row = tags.read_text().partition("[[tag]]")[2]
    more = [f"[[tag]]{row.replace('2.13.0', version)}" for version in ("2.12.0", "2.11.0")]
    synthetic.edit_file(tags, lambda text: "\n".join([text, *more]))
    other = CUDA_PACKAGE.replace("runtime", "compiler")
    (workshop.folder / other).write_text("listed, not read")
    synthetic.edit_file(workshop.patches / "catalogue/cuda.toml", lambda text: f'{text}"{other}" = ""\n')
    started.clear()
    doctor.run(workshop.cache, workshop.output)
    assert len(started) == few == 5, started
    assert "MISSING" not in capsys.readouterr().out
    asked = [word for words in started for word in words]
    assert {"torch", "nvidia-runtime", "nvidia-compiler"} <= {*asked}


def test_doctor_takes_away_what_a_compiler_that_is_killed_leaves(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _known_machine(workshop, monkeypatch)
    compiler, temporary = workshop.folder / "c++", workshop.folder / "temporary"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { : > "$TMPDIR/cc.s"; : > "$0.called"; kill -KILL $$; }\n')
    compiler.chmod(0o755)
    temporary.mkdir()
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(MachineNotReady):
        doctor.run(workshop.cache, workshop.output)
    assert Path(f"{compiler}.called").exists()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("manager", "advice"),
    [
        ("apt-get", "apt-get install g++"),
        ("dnf", "dnf install gcc-c++"),
        ("pacman", "pacman -S gcc"),
        ("none", "install c++ with your distribution's package manager"),
    ],
)
def test_the_remedy_fits_the_distribution(manager: str, advice: str) -> None:
    assert doctor._install("c++", lambda word: "/bin/x" if word == manager else None) == advice


def test_the_compiler_may_have_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env 'g++' -pipe")
    assert compilation.compiler() == ["env", "g++", "-pipe"]


def _known_machine(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's catalogue and registry."""
    synthetic.write_sources(workshop.patches, {workshop.base.name: "0" * 64})
    monkeypatch.setattr(doctor.paths, "patches_folder", lambda: workshop.patches)
    (workshop.folder / CUDA_PACKAGE).write_text("listed, not read")
    elsewhere = "a-1-py3-none-win_amd64.whl"
    (workshop.patches / "catalogue/cuda.toml").write_text(
        f'["11.7"]\n"{elsewhere}" = ""\n["12.4"]\n"{CUDA_PACKAGE}" = ""\n'
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(workshop.folder))
    monkeypatch.setattr(sys, "argv", ["lmsbuild"])


@pytest.mark.parametrize("words", [("generate", "v2.13.0"), ("pytorch", "v2.13.0")])
def test_a_cache_that_cannot_be_written_is_said(workshop: Workshop, words: tuple[str, ...]) -> None:
    file = workshop.folder / "file"
    file.write_text("x")
    variables = found_only_in(workshop.folder)
    done = workshop.run(*words, environment={**variables, "LMSBUILD_CACHE": str(file / "cache")})
    assert done.returncode == 13, done.stderr
    assert "LMSBUILD_CACHE" in done.stderr
