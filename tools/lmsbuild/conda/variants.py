"""The variables of the recipe for one wheel: all that differs between tags, interpreters, CUDA versions and platforms."""

from __future__ import annotations

import io
import posixpath
import re
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.conda import openmp, runpath
from lmsbuild.conda.platforms import Platform, find_platform
from lmsbuild.conda.requirements import (
    conda_requirements,
    marker_environment,
    read_metadata,
    read_providers,
    unstated,
)
from lmsbuild.elf import symbols
from lmsbuild.errors import BadSources, UnknownRequirement, WrongPlatform, WrongVersion
from lmsbuild.graft import graft
from lmsbuild.patch import series
from lmsbuild.patch.series import Graft
from lmsbuild.wheel.name import WheelName
from lmsbuild.wheel.target import machine_of
from lmsbuild.wheel.wheel import WheelFile

_FIRST_NUMBER = 1000  # above those of other channels, so that of one version this build is preferred
_CUDA_NUMBER = (
    100_000  # what a CUDA build's number is above the CPU build's: it is preferred where both can be installed
)
_OLDEST_GLIBC = 17  # the x of the 2.x that channels build for
_OWN_LICENSE = "Apache-2.0"
_ABI = re.compile(r"cp(3)(\d+)(t?)m?")
_LINE = re.compile(r"\$\{\{ (run_\w+) \}\}")  # of a recipe
_CUDA_EXTRA = "and-cuda"  # the extra that brings what a CUDA wheel needs of CUDA, where the wheel does not require it


@dataclass(frozen=True)
class Layout:
    """Where a wheel's files are in an environment."""

    python: str  # such as "3.11"
    abi: str  # such as "cp311"
    platform: Platform

    @property
    def packages(self) -> str:
        return f"lib/python{self.python}/site-packages"

    def place(self, name: str, data_folder: str) -> str:
        """The path in the environment of a file in the wheel; `data_folder` is the wheel's for files of other places."""
        if not name.startswith(f"{data_folder}/"):
            return f"{self.packages}/{name}"
        kind, _, rest = name.removeprefix(f"{data_folder}/").partition("/")
        folders = {"purelib": self.packages, "platlib": self.packages, "scripts": "bin", "data": "."}
        if kind not in folders:
            raise WrongPlatform(f"the wheel has files for {kind!r}, for which an environment has no place")
        return posixpath.normpath(f"{folders[kind]}/{rest}")


def layout(wheel: WheelName, file_name: str, recipes: Path) -> Layout:
    """Raises WrongVersion when the wheel is not patched, WrongPlatform when there are no packages for its platform."""
    if not wheel.is_patched:
        raise WrongVersion(f"{file_name} is no patched wheel: build one with `lmsbuild {framework(wheel, file_name)}`")
    abi = min(tag.abi for tag in wheel.tags)
    match = _ABI.fullmatch(abi)
    if match is None:
        raise WrongPlatform(f"{file_name} is for {abi}: packages are made for CPython 3")
    return Layout(f"{match[1]}.{match[2]}{match[3]}", abi, find_platform(recipes, machine_of(wheel.platforms[0])))


def framework(wheel: WheelName, file_name: str) -> str:
    """The framework that the wheel is of, which is also its folder in recipes/. Raises WrongVersion when it is of none."""
    known = catalogue.published(paths.patches_folder())
    if wheel.package not in known:
        raise WrongVersion(f"{file_name}: there are recipes for {', '.join(sorted(known))} only")
    return known[wheel.package]


def own_number() -> int:
    """The build number that this version of Large Model Support gives: higher for a later one. Raises BadSources."""
    stated = metadata.version("lmsbuild")
    major, minor, micro = (*Version(stated).release, 0, 0, 0)[:3]
    if major > 8 or max(minor, micro) > 99:
        raise BadSources(f"version {stated} of lmsbuild has no build number: it takes up to 8, 99 and 99")
    return _FIRST_NUMBER + 10_000 * major + 100 * minor + micro


def describe(wheel: WheelFile, target: Layout, recipes: Path, number: int | None = None) -> dict[str, str]:
    """The recipe's variables for this wheel; `number` is the build's, without it that of this version of LMS."""
    name = wheel.name
    own = framework(name, wheel.path.name)
    tag = catalogue.find_tag(paths.patches_folder(), f"v{name.version.public}", own)
    contents = series.read_series(paths.patches_folder(), tag).graft
    cuda = ".".join(graft.cuda_version(wheel, contents).split(".")[:2])  # such as 12.4; empty: none
    stated = read_metadata(wheel.read(f"{wheel.dist_info}/METADATA").decode())
    environment = marker_environment(target.python, target.platform.machine)
    extras = [_CUDA_EXTRA] if cuda else []
    needs = conda_requirements(stated.requirements, read_providers(recipes), environment, extras)
    needs = {**unstated(recipes / own / "requires.toml", tag), **needs}
    lines = _LINE.findall((recipes / own / "recipe.yaml").read_text())
    for package in needs:
        if _variable(package) not in lines:
            raise UnknownRequirement(
                f"the wheel requires {package}, for which recipes/{own}/recipe.yaml has no line: add one"
            )
    label = (name.version.local or "").split(".")[-1]
    toolkit = f"cuda{cuda.replace('.', '')}" if cuda else "cpu"
    if "debian" in (name.version.local or "").split("."):
        toolkit += "_debian"
    release = target.python.rstrip("t")
    major, minor = release.split(".")
    number = (own_number() if number is None else number) + (_CUDA_NUMBER if cuda else 0)
    variants = {
        "version": name.version.public,
        "next_series": f"{name.version.major}.{name.version.minor + 1}.0a0",
        "number": str(number),
        "build_string": f"{toolkit}_py{target.abi.removeprefix('cp')}_{label}_{number}",
        "python": target.python,
        "license": _license(stated.license),
        "run_python": f"python >={release},<{major}.{int(minor) + 1}.0a0",
        "run_python_abi": f"python_abi {release}.* *_{target.abi}",
        "run_glibc": f"__glibc >=2.{_glibc(wheel)},<3.0a0",
        "cuda": cuda,
        "libtorch": str(_fits_other_compilers(wheel, contents)).lower(),
        "run_cuda": "__cuda" if cuda else "",
        "run_cuda_version": "",
        "run_openmp": "_openmp_mutex >=4.5" if any(openmp.is_runtime(member) for member in wheel.members) else "",
    }
    known = {_variable(package): need for package, need in needs.items()}
    variants.update((line, known.get(line, "")) for line in lines if line not in variants)
    if cuda and any(_is_cuda(need) for need in stated.requirements):
        generation, _, _ = cuda.partition(".")
        variants["run_cuda_version"] = f"cuda-version >={cuda},<{int(generation) + 1}"
    return variants


def _license(stated: str) -> str:
    return stated if _OWN_LICENSE in stated.split() else f"{stated} AND {_OWN_LICENSE}"


def _glibc(wheel: WheelFile) -> int:
    """The oldest glibc 2.x that the wheel's name promises to run with, or else that its libraries ask for."""
    promised = [minor for minor in map(symbols.claimed_minor, wheel.name.platforms) if minor is not None]
    if promised:
        return min(promised)
    found = _OLDEST_GLIBC
    for name in wheel.members:
        if name.endswith(".so") or ".so." in name:
            data = wheel.read(name)
            if data.startswith(runpath.MAGIC):
                versions = symbols.versions_in(io.BytesIO(data), name)
                found = max([found, *filter(None, map(symbols.glibc_of, versions))])
    return found


def _fits_other_compilers(wheel: WheelFile, description: Graft) -> bool:
    """Whether the libraries have the C++11 ABI, with which other channels compile what uses them."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(wheel.read(description.abi_library))
        file.flush()
        return symbols.uses_new_strings(Path(file.name))


def _variable(package: str) -> str:
    return f"run_{package.replace('-', '_')}"


def _is_cuda(requirement: str) -> bool:
    return requirement.startswith(("nvidia-", "cuda-"))
