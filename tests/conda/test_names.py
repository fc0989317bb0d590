"""What a wheel requires, in conda's names."""

from __future__ import annotations

import re

import pytest

from lmsbuild import paths
from lmsbuild.conda_names import conda_requirements, marker_environment, read_metadata, read_providers
from lmsbuild.errors import DamagedWheel, UnknownRequirement
from lmsbuild.platforms import find_platform, read_platforms

RECIPES = paths.recipes_folder()
X86 = marker_environment("3.12", "x86_64")


def converted(*requirements: str, python: str = "3.12", machine: str = "x86_64") -> list[str]:
    found = conda_requirements(requirements, read_providers(RECIPES), marker_environment(python, machine))
    return sorted(found.values())


@pytest.mark.parametrize(
    ("requirement", "conda"),
    [
        ("filelock", ["filelock"]),
        ("typing-extensions (>=4.10.0)", ["typing_extensions >=4.10.0"]),
        ("typing_extensions>=4.13.0", ["typing_extensions >=4.13.0"]),
        ("sympy (==1.13.1) ; python_version >= '3.9'", ["sympy ==1.13.1"]),
        ("setuptools ; python_version < '3.12'", []),
        ("setuptools<82", ["setuptools <82"]),
        ("triton~=3.9.0; platform_system == 'Linux' and python_version < '3.16'", ["triton ~=3.9.0"]),
        ("opt-einsum>=3.3; extra == 'opt-einsum'", []),
        ("nvidia-cublas-cu12 (==12.4.5.8) ; platform_machine == 'x86_64'", ["libcublas >=12.4.5.8,<13.0a0"]),
        ("nvidia-cublas-cu12 (==12.4.5.8) ; platform_machine == 'aarch64'", []),
        ("nvidia-cudnn-cu13==9.19.0.56", ["cudnn <10.0a0,>=9.19.0.56"]),
        ("nvidia-cublas-cu11 (==11.10.3.66)", ["cudatoolkit"]),
        ("cuda-toolkit[cublas,nvtx]==13.0.2", ["cuda-nvtx", "libcublas"]),
        ("cuda-bindings<14,>=13.0.3", ["cuda-bindings <14,>=13.0.3"]),
    ],
)
def test_requirement(requirement: str, conda: list[str]) -> None:
    assert [set(re.split("[ ,]", text)) for text in converted(requirement)] == [
        set(re.split("[ ,]", text)) for text in conda
    ]


def test_requirements_of_one_package_are_joined() -> None:
    assert converted("numpy>=1.20", "numpy<3; python_version >= '3.9'") == ["numpy >=1.20,<3"]


def test_unknown_requirement() -> None:
    with pytest.raises(UnknownRequirement, match="requires libfoo, for which recipes/names.toml has no conda package"):
        converted("libfoo>=1")
    with pytest.raises(UnknownRequirement, match=r"cuda-toolkit\[foo\]"):
        converted("cuda-toolkit[foo]==13.0.2")
    with pytest.raises(DamagedWheel, match="no requirement"):
        converted("a b c")


def test_licence() -> None:
    assert read_metadata("License-Expression: MIT AND BSD-2-Clause\n\nbody").license == "MIT AND BSD-2-Clause"
    assert read_metadata("License: BSD-3\nRequires-Dist: a\nRequires-Dist: b\n\n").requirements == ("a", "b")


def test_the_recipe_has_a_line_for_each_package() -> None:
    """A requirement without a line would be left out of the package in silence."""
    lines = set(re.findall(r"- \$\{\{ run_(\w+) \}\}", (RECIPES / "pytorch/recipe.yaml").read_text()))
    packages = {name for provider in read_providers(RECIPES).values() for name in provider.package_names()}
    own = {"python", "python_abi", "glibc", "cuda_version"}
    assert lines == own | {name.replace("-", "_") for name in packages}


def test_platforms() -> None:
    assert [platform.subdir for platform in read_platforms(RECIPES)] == ["linux-64", "linux-aarch64", "linux-ppc64le"]
    assert find_platform(RECIPES, "ppc64le") == find_platform(RECIPES, "linux-ppc64le")
