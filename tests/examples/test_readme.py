"""README.md and CONTRIBUTING.md: their program runs, and their commands fit the tool and the wheels that it makes."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import click
import pytest

from example_programs import ROOT, run
from lmsbuild.cli import cli

README = (ROOT / "README.md").read_text()
# What `lmsbuild pytorch v2.13.0` makes of the wheels in the package indexes that there are: of CUDA builds, with and without
# a label, and of CPU builds.
WHEELS = [f"torch-2.13.0+{label}-cp311-cp311-manylinux_2_28_x86_64.whl" for label in ("lms1", "cu130.lms1", "cpu.lms1")]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_program_runs_as_it_stands(lms_python: Path, tmp_path: Path) -> None:
    (program,) = (block for block in blocks(README, "python") if "import torch" in block)
    done = run(lms_python, ["-c", program], tmp_path)
    said = re.fullmatch(r"(\d+) MiB of tensors in (\d+) MiB\n", done.stdout)
    assert done.returncode == 0 and said, done.stdout + done.stderr
    assert f"It prints `{said[1]} MiB of tensors in 256 MiB`" in README
    assert int(said[2]) <= 256


def test_the_commands_find_the_wheel_of_any_index() -> None:
    patterns = set(re.findall(r"dist/(torch-2\.13\.0\S*\.whl)", README))
    assert patterns == {"torch-2.13.0*lms1*.whl"}
    assert all(fnmatch.fnmatchcase(wheel, pattern) for wheel in WHEELS for pattern in patterns)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_commands_of_the_tool_exist(name: str) -> None:
    """With their arguments and options; nothing is run."""
    lines = [line for block in blocks((ROOT / name).read_text(), "sh") for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("lmsbuild ")]
    assert commands
    for words in commands:
        group: click.Command = cli
        with click.Context(cli) as context:
            while isinstance(group, click.Group):
                _, found, words = group.resolve_command(context, words)
                assert found is not None
                group = found
            group.make_context(group.name, words)
