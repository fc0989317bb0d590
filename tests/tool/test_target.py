"""Interpreters, their ABI tags, and what pip is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmsbuild.errors import WrongPlatform
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import Target, python_of
from workshop import Workshop


@pytest.mark.parametrize(
    ("python", "abi"), [("3.6", "cp36m"), ("3.7", "cp37m"), ("3.8", "cp38"), ("3.12", "cp312"), ("3.13t", "cp313t")]
)
def test_a_version_and_its_abi_tag_stand_for_each_other(python: str, abi: str) -> None:
    target = Target(python, "x86_64", is_running=False)
    assert (target.interpreter, python_of(abi)) == (abi, python)
    words = target.pip_arguments()
    assert words[words.index("--abi") + 1] == abi
    assert words[words.index("--python-version") + 1] == python.rstrip("t")
    assert "manylinux2014_x86_64" in words  # which stands for manylinux1 too, that of the oldest wheels
    target.check(parse_name(Path(f"torch-1.4.0-{abi.rstrip('mt')}-{abi}-manylinux1_x86_64.whl")), "it")


def test_an_old_wheel_for_another_interpreter_is_refused_with_the_right_advice() -> None:
    name = "torch-1.4.0-cp37-cp37m-manylinux1_x86_64.whl"
    with pytest.raises(WrongPlatform, match=r"is for cp37m, not for Python 3\.8.*pass --python 3\.7 to build for that"):
        Target("3.8", "x86_64", is_running=False).check(parse_name(Path(name)), name)


@pytest.mark.parametrize("abi", ["cp27mu", "abi3", "none"])
def test_a_tag_of_something_else_is_no_python_3(abi: str) -> None:
    assert python_of(abi) is None


def test_an_interpreter_that_the_added_files_do_not_run_with_is_refused(workshop: Workshop) -> None:
    done = workshop.run("pytorch", "v2.13.0", "--python", "3.6", "--base-wheel", workshop.base)
    assert done.returncode == WrongPlatform.exit_code
    assert "needs Python 3.7 or newer, not 3.6" in " ".join(done.stderr.split())
