"""What a wheel requires, in conda's names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import rattler

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.catalogue.rows import replace_file
from lmsbuild.conda.platforms import find_platform, read_platforms
from lmsbuild.conda.requirements import conda_requirements, marker_environment, read_metadata, read_providers
from lmsbuild.errors import BadSources, DamagedWheel, UnknownRequirement
from lmsbuild.fetch import ranged
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import machine_of, python_of
from lmsbuild.wheel.wheel import WheelFile

RECIPES = paths.recipes_folder()
TAGS = catalogue.tags(paths.patches_folder())
NEWEST = {tag.framework: tag for tag in sorted(TAGS, key=lambda tag: tag.number)}
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
    assert read_metadata("License: BSD-3\n\n").license == "BSD-3-Clause"
    assert read_metadata("License: Apache 2.0\n\n").license == "Apache-2.0"
    assert read_metadata("License: BSD-3\nRequires-Dist: a\nRequires-Dist: b\n\n").requirements == ("a", "b")


def lines(framework: str) -> set[str]:
    return set(re.findall(r"- \$\{\{ run_(\w+) \}\}", (RECIPES / framework / "recipe.yaml").read_text()))


def test_recipes_and_names_have_the_same_packages() -> None:
    packages = {name.replace("-", "_") for row in read_providers(RECIPES).values() for name in row.package_names()}
    own = {"python", "python_abi", "glibc", "cuda", "cuda_version"}
    frameworks = [path.name for path in RECIPES.iterdir() if path.is_dir()]
    assert sorted(frameworks) == ["pytorch", "tensorflow"]
    for framework in frameworks:
        assert own <= lines(framework) <= own | packages | {"openmp"}
    assert set().union(*map(lines, frameworks)) == own | packages | {"openmp"}


# What the official wheels of TensorFlow say, as far as names or versions are of another kind than those above.
TENSORFLOW = {
    "2.1.0": (
        "keras-applications (>=1.0.8)",
        "scipy (==1.4.1) ; python_version >= '3'",
        "wheel (>=0.26)",
        "astor (>=0.6.0)",
    ),
    "2.14.1": (
        "flatbuffers (>=23.5.26)",
        "libclang (>=13.0.0)",
        "ml-dtypes (==0.2.0)",
        "tensorflow-estimator (<2.15,>=2.14.0)",
        "tensorflow-io-gcs-filesystem (>=0.23.1)",
        "nvidia-cuda-nvcc-cu11 (==11.8.89) ; extra == 'and-cuda'",
        "nvidia-cudnn-cu11 (==8.7.0.84) ; extra == 'and-cuda'",
        "tensorrt (==8.5.3.1) ; extra == 'and-cuda'",
    ),
    "2.21.0": ("opt_einsum>=2.3.2", "google_pasta>=0.1.1", 'nvidia-cuda-nvcc-cu12<13.0,>=12.5.82; extra == "and-cuda"'),
}


@pytest.mark.parametrize(
    ("version", "extras", "conda"),
    [
        ("2.1.0", [], ["astor >=0.6.0", "keras-applications >=1.0.8", "scipy ==1.4.1", "wheel >=0.26"]),
        ("2.14.1", [], ["ml_dtypes ==0.2.0", "python-flatbuffers >=23.5.26"]),
        (
            "2.14.1",
            ["and-cuda"],
            ["cudatoolkit", "cudnn >=8.7.0.84,<9.0a0", "ml_dtypes ==0.2.0", "python-flatbuffers >=23.5.26"],
        ),
        ("2.21.0", ["and-cuda"], ["cuda-nvcc-tools", "google-pasta >=0.1.1", "opt_einsum >=2.3.2"]),
    ],
)
def test_requirements_of_tensorflow(version: str, extras: list[str], conda: list[str]) -> None:
    environment = marker_environment("3.11", "x86_64")
    found = conda_requirements(TENSORFLOW[version], read_providers(RECIPES), environment, extras)
    assert sorted(found.values()) == conda


def official(tag: Tag) -> list[str]:
    """A wheel for x86_64 of each package of the tag; of the newest tag of a framework one for aarch64, too."""
    chosen: dict[tuple[str, str], str] = {}
    for name in (*tag.records, *tag.wheels):  # first the one whose RECORD is known
        parsed = parse_name(Path(name))
        machine = machine_of(parsed.platforms[0])
        if machine == "x86_64" or tag == NEWEST[tag.framework]:
            chosen.setdefault((parsed.package, machine), name)
    return list(chosen.values())


def fetch(name: str) -> bytes:
    """What an official wheel says of itself: some kilobytes, fetched without the rest of it.

    The archive's checksum alone vouches for it: some wheels' RECORD states the hash of an earlier METADATA.
    """
    package = parse_name(Path(name)).package
    address = ranged.locate(package, [name], links(package))
    with ranged.open_address(address) as stream, WheelFile(Path(name), stream) as wheel:
        return wheel.read(f"{wheel.dist_info}/METADATA")


links = cache(ranged.links)


def stated(name: str) -> str:
    """METADATA of an official wheel; kept in the cache."""
    file = paths.cache_folder() / "metadata" / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, fetch(name))
    return file.read_text()


# Which differ in what they require: without CUDA's packages, with them, by way of cuda-toolkit; Keras 2 and 3.
SAMPLE = ("pytorch:v1.4.0", "pytorch:v2.6.0", NEWEST["pytorch"].full_name, "tensorflow:v2.14.1", "tensorflow:v2.21.0")


@pytest.mark.parametrize(
    "tag",
    [
        pytest.param(tag, marks=pytest.mark.build if tag.full_name in SAMPLE else pytest.mark.release, id=tag.full_name)
        for tag in TAGS
    ],
)
def test_what_official_wheels_require_has_conda_packages(tag: Tag) -> None:
    always = {"tensorflow": {"numpy", "protobuf", "absl-py"}, "pytorch": {"filelock", "jinja2", "networkx", "sympy"}}
    for name in official(tag):
        parsed = parse_name(Path(name))
        python = python_of(min(one.abi for one in parsed.tags))
        assert python is not None
        environment = marker_environment(python, machine_of(parsed.platforms[0]))
        extras = ["and-cuda"] if parsed.package == "tensorflow" else []
        metadata = read_metadata(stated(name))
        found = conda_requirements(metadata.requirements, read_providers(RECIPES), environment, extras)
        assert {package.replace("-", "_") for package in found} <= lines(tag.framework), name
        assert tag.number < (2,) or always[tag.framework] <= set(found), name
        cuda = parsed.package != "tensorflow-cpu" and any(
            text.startswith("nvidia-cu") for text in metadata.requirements
        )
        assert ("cudnn" in found) is cuda, name
        for text in found.values():
            assert rattler.MatchSpec(text, strict=True).name is not None, name


def test_a_row_that_provides_nothing(tmp_path: Path) -> None:
    for row in ('conda = ""\nversion = "stated"', 'conda = "a"\nversion = "none"', 'conda = "a"\nversion = "latest"'):
        (tmp_path / "names.toml").write_text(f"[a]\n{row}\n")
        with pytest.raises(BadSources, match="a row for a that says nothing of use"):
            read_providers(tmp_path)


def test_platforms() -> None:
    assert [platform.subdir for platform in read_platforms(RECIPES)] == ["linux-64", "linux-aarch64", "linux-ppc64le"]
    assert find_platform(RECIPES, "ppc64le") == find_platform(RECIPES, "linux-ppc64le")
