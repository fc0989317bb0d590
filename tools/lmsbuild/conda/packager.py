"""Makes a conda package of a patched wheel: unpack it as an environment has it, describe it for the recipe, run that.

The folder that the recipe is run in is complete: `rattler-build` or `conda build` make the same package of it.
"""

from __future__ import annotations

import configparser
import json
import os
import posixpath
import re
import shutil
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from platform import machine

from lmsbuild import command, paths, report
from lmsbuild.catalogue import catalogue
from lmsbuild.conda import runpath
from lmsbuild.conda.package_file import missing_tools
from lmsbuild.conda.platforms import Platform, find_platform
from lmsbuild.conda.requirements import conda_requirements, marker_environment, read_metadata, read_providers
from lmsbuild.elf.symbols import claimed_minor
from lmsbuild.errors import (
    CondaBuildFailed,
    FolderInUse,
    UnknownRequirement,
    WrongPlatform,
    WrongVersion,
    disk_failures,
)
from lmsbuild.graft import graft
from lmsbuild.patch import series
from lmsbuild.wheel.target import machine_of
from lmsbuild.wheel.wheel import WheelFile, WheelName, parse_name, record_hash, record_text
from lmsbuild.workspace import publish, workspace

NUMBER = 1000  # of the build: above those of other channels, so that of one version this build is preferred
LEVEL = 12  # of compression; docs/performance.md has what others take
_OWN_LICENSE = "Apache-2.0"
_ABI = re.compile(r"cp(3)(\d+)(t?)m?")
_LICENSES = ("LICENSE", "NOTICE", "THIRD_PARTY_NOTICES")  # what the names of such files begin with
_LINE = re.compile(r"\$\{\{ (run_\w+) \}\}")  # of a recipe
_CUDA_EXTRA = "and-cuda"  # the extra that brings what a CUDA wheel needs of CUDA, where the wheel does not require it


@dataclass(frozen=True)
class Options:
    """One package."""

    wheel: Path  # a patched one
    recipes: Path
    output: Path
    channels: tuple[str, ...]  # which what the package requires comes from, for the tests inside it
    test: bool  # whether those that need an environment run
    level: int = LEVEL
    threads: int = os.cpu_count() or 1
    requires: tuple[str, ...] = ()  # what the package requires beside what the wheel's metadata says


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
        raise WrongVersion(f"{file_name} is no patched wheel: build one with `lmsbuild {_framework(wheel, file_name)}`")
    abi = min(tag.abi for tag in wheel.tags)
    match = _ABI.fullmatch(abi)
    if match is None:
        raise WrongPlatform(f"{file_name} is for {abi}: packages are made for CPython 3")
    return Layout(f"{match[1]}.{match[2]}{match[3]}", abi, find_platform(recipes, machine_of(wheel.platforms[0])))


def build(options: Options) -> Path:
    """Makes the package and returns its file, in the folder for its platform. Nothing appears there before it is complete."""
    name = parse_name(options.wheel)
    _framework(name, options.wheel.name)
    target = layout(name, options.wheel.name, options.recipes)
    try:
        metadata.version("py-rattler-build")
    except metadata.PackageNotFoundError as error:
        raise missing_tools("py-rattler-build") from error
    with disk_failures(options.output), workspace(options.output) as scratch:
        test = options.test and target.platform.machine == machine()
        if options.test and not test:
            report.note(f"the tests inside the package need {target.platform.subdir}, so they do not run here")
        recipe = prepare(options.wheel, options.recipes, scratch / "package", options.requires)
        report.stage("package")
        built = _run_recipe(recipe, scratch / "built", target.platform, test, options)
        report.stage("publish")
        folder = options.output / target.platform.subdir
        folder.mkdir(exist_ok=True)
        built.chmod(0o644)
        publish(built, folder / built.name)
    return folder / built.name


def prepare(wheel: Path, recipes: Path, folder: Path, requires: Sequence[str] = ()) -> Path:
    """Writes all that the recipe needs into a new folder: tree, licences, variants. Returns the recipe's folder.

    The package requires what the wheel does, and `requires`.

    Raises FolderInUse, DamagedWheel, TamperedWheel, UnknownRequirement, WrongPlatform or WrongVersion.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FolderInUse(f"{folder} is not empty: give a new folder")
    name = parse_name(wheel)
    framework = _framework(name, wheel.name)
    target = layout(name, wheel.name, recipes)
    recipe = folder / "recipe"
    try:
        with disk_failures(folder), WheelFile(wheel) as file:
            variants = describe(file, target, recipes)
            report.stage("unpack")
            _unpack(file, target, folder / "tree")
            shutil.copytree(recipes / framework, recipe)
            _add_requirements(recipe / "recipe.yaml", requires)
            _copy_licenses(folder / "tree" / target.packages, file.dist_info, recipe / "licenses")
            table = {key: [value] for key, value in variants.items()}
            (recipe / "variants.yaml").write_text(json.dumps(table, indent=1) + "\n")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return recipe


def _add_requirements(recipe: Path, requires: Sequence[str]) -> None:
    start, key, rest = recipe.read_text().partition("\n  run:\n")
    recipe.write_text(start + key + "".join(f"    - {json.dumps(text)}\n" for text in requires) + rest)


def channel_address(text: str) -> str:
    """A channel as the recipe's program finds it from its own folder: a folder's address, or a name as it is."""
    return Path(text).resolve().as_uri() if Path(text).is_dir() else text


def describe(wheel: WheelFile, target: Layout, recipes: Path) -> dict[str, str]:
    """The recipe's variables for this wheel."""
    name = wheel.name
    framework = _framework(name, wheel.path.name)
    version = _cuda_version(wheel, framework)
    stated = read_metadata(wheel.read(f"{wheel.dist_info}/METADATA").decode())
    environment = marker_environment(target.python, target.platform.machine)
    extras = [_CUDA_EXTRA] if version else []
    needs = conda_requirements(stated.requirements, read_providers(recipes), environment, extras)
    lines = _LINE.findall((recipes / framework / "recipe.yaml").read_text())
    for package in needs:
        if _variable(package) not in lines:
            raise UnknownRequirement(
                f"the wheel requires {package}, for which recipes/{framework}/recipe.yaml has no line: add one"
            )
    label = (name.version.local or "").split(".")[-1]
    toolkit = f"cuda{version.replace('.', '')}" if version else "cpu"
    release = target.python.rstrip("t")
    major, minor = release.split(".")
    variants = {
        "version": name.version.public,
        "number": str(NUMBER),
        "build_string": f"{toolkit}_py{target.abi.removeprefix('cp')}_{label}_{NUMBER}",
        "python": target.python,
        "license": _license(stated.license),
        "run_python": f"python >={release},<{major}.{int(minor) + 1}.0a0",
        "run_python_abi": f"python_abi {release}.* *_{target.abi}",
        "run_glibc": _glibc(name),
        "run_cuda_version": "",
    }
    known = {_variable(package): need for package, need in needs.items()}
    variants.update((line, known.get(line, "")) for line in lines if line not in variants)
    if version and any(_is_cuda(need) for need in stated.requirements):
        series, _, _ = version.partition(".")
        variants["run_cuda_version"] = f"cuda-version >={version},<{int(series) + 1}"
    return variants


def _framework(wheel: WheelName, file_name: str) -> str:
    """The framework that the wheel is of, which is also its folder in recipes/. Raises WrongVersion when it is of none."""
    known = catalogue.published(paths.patches_folder())
    if wheel.package not in known:
        raise WrongVersion(f"{file_name}: there are recipes for {', '.join(sorted(known))} only")
    return known[wheel.package]


def _cuda_version(wheel: WheelFile, framework: str) -> str:
    """The CUDA version that the wheel was built for, such as 12.4; empty when it has no CUDA."""
    patches = paths.patches_folder()
    tag = catalogue.find_tag(patches, f"v{wheel.name.version.public}", framework)
    stated = graft.cuda_version(wheel, series.read_series(patches, tag).graft)
    return ".".join(stated.split(".")[:2])


def _license(stated: str) -> str:
    return stated if _OWN_LICENSE in stated.split() else f"{stated} AND {_OWN_LICENSE}"


def _glibc(name: WheelName) -> str:
    promised = [minor for minor in map(claimed_minor, name.platforms) if minor is not None]
    return f"__glibc >=2.{min(promised)},<3.0a0" if promised else ""


def _variable(package: str) -> str:
    return f"run_{package.replace('-', '_')}"


def _is_cuda(requirement: str) -> bool:
    return requirement.startswith(("nvidia-", "cuda-"))


def _unpack(wheel: WheelFile, target: Layout, tree: Path) -> None:
    """Unpacks the wheel as pip installs it, and makes its libraries find those of the environment."""
    data_folder = wheel.dist_info.removesuffix(".dist-info") + ".data"
    placed: dict[str, Path] = {}

    def place(name: str) -> Path:
        placed[name] = tree / target.place(name, data_folder)
        return placed[name]

    with report.progress("unpack", wheel.total_size()) as show:
        wheel.verify(place, show)
    for name, path in placed.items():
        mode = stat.S_IMODE(wheel.members[name].external_attr >> 16)
        path.chmod(0o755 if mode & 0o111 or path.parent == tree / "bin" else 0o644)
    edited = {name for name, path in placed.items() if _use_environment(path, tree, target.packages)}
    record = {target.place(name, data_folder): row for name, row in wheel.record().items()}
    for name in edited:
        data = placed[name].read_bytes()
        record[target.place(name, data_folder)] = (record_hash(data), str(len(data)))
    for script, module in _programs(wheel).items():
        path = tree / "bin" / script
        path.parent.mkdir(exist_ok=True)
        path.write_text(_program(module))
        path.chmod(0o755)
        record[f"bin/{script}"] = ("", "")  # what it begins with depends on where it is installed
    dist_info = tree / target.packages / wheel.dist_info
    (dist_info / "INSTALLER").write_text("conda\n")
    record[f"{target.packages}/{wheel.dist_info}/INSTALLER"] = (record_hash(b"conda\n"), str(len(b"conda\n")))
    rows = [(posixpath.relpath(name, target.packages), *row) for name, row in sorted(record.items())]
    (dist_info / "RECORD").write_bytes(record_text(rows))


def _use_environment(path: Path, tree: Path, packages: str) -> bool:
    """Makes a library that looks into other wheels, or into folders of its build machine, look into the environment's lib.

    Returns whether it had to be changed.
    """
    with path.open("rb") as stream:
        known = runpath.read(stream, path.name)
    if known is None:
        return False
    folder = path.parent.relative_to(tree)
    own = [entry for entry in known.runpath if _stays_in_wheel(entry, folder, tree, packages)]
    if len(own) == len(known.runpath):
        return False
    library = posixpath.relpath("lib", folder.as_posix())
    runpath.write(path, (*own, f"$ORIGIN/{library}"))
    return True


def _stays_in_wheel(entry: str, folder: Path, tree: Path, packages: str) -> bool:
    """Whether a library path of a file in `folder` leads to one of the packages that the wheel has."""
    if entry != "$ORIGIN" and not entry.startswith("$ORIGIN/"):
        return False
    found = posixpath.normpath(entry.replace("$ORIGIN", folder.as_posix(), 1))
    top = posixpath.relpath(found, packages).split("/")[0]
    return top not in (".", "..") and (tree / packages / top).is_dir()


def _programs(wheel: WheelFile) -> dict[str, str]:
    """The commands that the wheel brings, as MODULE:FUNCTION by name; not those of other packages, which bring them, too."""
    name = f"{wheel.dist_info}/entry_points.txt"
    if name not in wheel.members:
        return {}
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(wheel.read(name).decode())
    found = dict(parser["console_scripts"]) if parser.has_section("console_scripts") else {}
    own = {member.split("/")[0] for member in wheel.members}
    return {script: entry for script, entry in found.items() if entry.partition(":")[0].strip().split(".")[0] in own}


def _program(entry: str) -> str:
    module, _, function = entry.partition(":")
    name = function.strip().split(".")[0]
    return f"#!python\nimport sys\n\nfrom {module.strip()} import {name}\n\nsys.exit({function.strip()}())\n"


def _copy_licenses(packages: Path, dist_info: str, folder: Path) -> None:
    """Copies the wheel's licence files: those of its description, and those at the top of its packages."""
    folder.mkdir()
    for path in sorted(packages.glob(f"{dist_info}/**/*")):
        relative = path.relative_to(packages / dist_info)
        if path.is_file() and (relative.parts[0] == "licenses" or relative.name.startswith(_LICENSES)):
            _copy(path, folder / "wheel" / relative)
    for path in sorted(packages.glob("*/*")):
        if path.is_file() and path.name.startswith(_LICENSES) and path.parent.name != dist_info:
            _copy(path, folder / "wheel" / path.parent.name / path.name)
    for file in metadata.files("lmsbuild") or []:
        if file.name == "LICENSE":
            (folder / "LICENSE-large-model-support").write_text(file.read_text())


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _run_recipe(recipe: Path, output: Path, platform: Platform, test: bool, options: Options) -> Path:
    """Runs the recipe in a process of its own, so that an interrupt ends it."""
    words: list[str | Path] = [sys.executable, "-m", "lmsbuild.programs.conda_recipe", recipe, output, platform.subdir]
    words += [
        str(options.level),
        str(options.threads),
        "native" if test else "skip",
        *map(channel_address, options.channels),
    ]
    with report.progress("package", None):
        finished = command.run(words, folder=recipe.parent)
    report.output(finished.text)
    if finished.code:
        said = [line for line in (finished.error_text + finished.text).splitlines() if line.strip()]
        raise CondaBuildFailed(
            f"the recipe failed: {said[-1].strip() if said else 'it said nothing'}\n"
            "  Run again with -v for all that it said. What the package requires is looked for in the channels given with "
            "--channel; --no-test leaves out the tests that need it."
        )
    return Path(finished.text.splitlines()[-1])
