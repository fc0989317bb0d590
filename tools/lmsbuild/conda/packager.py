"""Makes conda packages of a patched wheel: unpack it as an environment has it, describe it for the recipe, run that.

The folder that the recipe is run in is complete: `rattler-build` or `conda build` make the same packages of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from platform import machine
from tempfile import TemporaryDirectory
from typing import Any

from lmsbuild import command, report, source_date
from lmsbuild.conda import LEVEL, package_tests, reproducible, tools
from lmsbuild.conda.platforms import Platform
from lmsbuild.conda.requirements import read_providers
from lmsbuild.conda.tree import copy_licenses, link_libraries, unpack
from lmsbuild.conda.variants import Layout, describe, framework, layout
from lmsbuild.errors import BadSources, CondaBuildFailed, FolderInUse, UnsolvableTest, disk_failures
from lmsbuild.sbom import sbom
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.wheel import WheelFile
from lmsbuild.workspace import publish, workspace

_FIRST_LEVEL = "conda:1"  # of what rattler-build writes, which is written anew


@dataclass(frozen=True)
class Options:
    """The packages of one wheel."""

    wheel: Path  # a patched one
    recipes: Path
    output: Path
    channels: tuple[str, ...]  # which what the package requires comes from, for the tests inside it
    test: bool  # whether those that need an environment run
    level: int = LEVEL
    threads: int = os.cpu_count() or 1
    requires: tuple[str, ...] = ()  # what the package requires beside what the wheel's metadata says
    number: int | None = None  # of the build; None: that of this version of LMS


@dataclass(frozen=True)
class Planned:
    """A package as it would be."""

    file: str  # its name
    requires: tuple[str, ...]


def build(options: Options) -> list[Path]:
    """Makes the packages and returns their files, in the folder for their platform, the framework's first.

    Nothing appears there before it is complete. Packages whose tests cannot be run since their environment cannot be made are
    left there, untested, and UnsolvableTest is raised.
    """
    name = parse_name(options.wheel)
    framework(name, options.wheel.name)
    target = layout(name, options.wheel.name, options.recipes)
    check_tools()
    test = options.test and can_test(target.platform)
    folder = options.output / target.platform.subdir
    with report.stages(), disk_failures(options.output), workspace(options.output) as scratch:
        with InputFile(options.wheel) as file:
            digest = file.make_private(scratch)
            with WheelFile(file) as wheel:
                seconds = _seconds(wheel)
            recipe = prepare(file, options.recipes, scratch / "package", options.requires, options.number)
        report.stage("package")
        made = _run_recipe(recipe, scratch / "built", target.platform)
        report.stage("compress")
        finished = scratch / target.platform.subdir
        finished.mkdir()
        for path in made:
            text = sbom.of_conda_package(path.name, target.platform.subdir, options.wheel, digest, seconds)
            described = {sbom.CONDA_MEMBER: text}
            reproducible.rewrite(path, finished / path.name, seconds, options.level, options.threads, described)
        untested = None
        if test:
            report.stage("test")
            try:
                for path in made:
                    package_tests.run(finished / path.name, options.channels)
            except UnsolvableTest as error:
                untested = error
        report.stage("publish")
        folder.mkdir(exist_ok=True)
        for path in made:
            (finished / path.name).chmod(0o644)
            publish(finished / path.name, folder / path.name)
    if untested:
        raise UnsolvableTest(
            f"{untested}\n  The package is kept: `lmsbuild conda test {folder / made[0].name} --channel ...` tests it."
        )
    return [folder / path.name for path in made]


def check_tools() -> None:
    """Raises NoCondaTools when a package that makes packages is not installed."""
    for package in ("py-rattler-build", "py-rattler", "zstandard"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise tools.missing(package) from error


def can_test(platform: Platform) -> bool:
    """Whether the tests inside a package for this platform can run here; says so when they cannot."""
    if platform.machine != machine():
        report.note(f"the tests inside the package need {platform.subdir}, so they do not run here")
    return platform.machine == machine()


def prepare(
    wheel: Path | InputFile, recipes: Path, folder: Path, requires: Sequence[str] = (), number: int | None = None
) -> Path:
    """Writes all that the recipe needs into a new folder: tree, licences, variants. Returns the recipe's folder.

    The package requires what the wheel does, and `requires`.

    Raises FolderInUse, DamagedWheel, TamperedWheel, UnknownRequirement, WrongPlatform or WrongVersion.
    """
    check_new(folder)
    was_there, recipe = folder.exists(), folder / "recipe"
    try:
        with disk_failures(folder), WheelFile(wheel) as file:
            target = layout(file.name, file.path.name, recipes)
            variants = _write_recipe(file, target, recipes, recipe, requires, number)
            report.stage("unpack")
            unpack(file, target, read_providers(recipes), folder / "tree")
            if variants["libtorch"] == "true":
                link_libraries(folder / "tree", target.packages)
            copy_licenses(folder / "tree" / target.packages, file.dist_info, recipe / "licenses")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if was_there:
            folder.mkdir()
        raise
    return recipe


def check_new(folder: Path) -> None:
    """Raises FolderInUse unless the folder is empty or can be made."""
    with disk_failures(folder):
        if folder.exists() and not folder.is_dir():
            raise FolderInUse(f"{folder} is a file: give a new folder")
        if folder.exists() and any(folder.iterdir()):
            raise FolderInUse(f"{folder} is not empty: give a new folder")


def plan(wheel: Path, recipes: Path, number: int | None = None) -> list[Planned]:
    """The packages that `build` would make, by the recipe. Raises NoCondaTools, and what `prepare` raises of a wheel."""
    check_tools()
    with TemporaryDirectory() as scratch, WheelFile(wheel) as file:
        target = layout(file.name, wheel.name, recipes)
        recipe = Path(scratch) / "recipe"
        _write_recipe(file, target, recipes, recipe, (), number)
        planned = _recipe_program(recipe, target.platform)
    return [Planned(name, tuple(requires)) for name, requires in planned]


def _write_recipe(
    wheel: WheelFile, target: Layout, recipes: Path, folder: Path, requires: Sequence[str], number: int | None
) -> dict[str, str]:
    """Writes the recipe with its variables, which it returns."""
    own = framework(wheel.name, wheel.path.name)
    variants = describe(wheel, target, recipes, number)
    shutil.copytree(recipes / own, folder, ignore=shutil.ignore_patterns("__pycache__"))
    _add_requirements(folder / "recipe.yaml", requires)
    table = {key: [value] for key, value in variants.items()}
    (folder / "variants.yaml").write_text(json.dumps(table, indent=1) + "\n")
    return variants


def _seconds(wheel: WheelFile) -> int:
    """The date of everything in the package: SOURCE_DATE_EPOCH when it is set, else that of the wheel's RECORD."""
    return source_date.of(wheel.members[f"{wheel.dist_info}/RECORD"].date_time)


def _add_requirements(recipe: Path, requires: Sequence[str]) -> None:
    """Adds to what the first package of the recipe requires, which is the framework's."""
    text = recipe.read_text()
    found = re.search(r"^( +)run:\n", text, re.MULTILINE)
    if found is None:
        raise BadSources(f"{recipe} has no requirements `run:`")
    lines = "".join(f"{found[1]}  - {json.dumps(need)}\n" for need in requires)
    recipe.write_text(text[: found.end()] + lines + text[found.end() :])


def _run_recipe(recipe: Path, output: Path, platform: Platform) -> list[Path]:
    """Runs the recipe. Returns the packages, in its order."""
    with report.progress("package", None):
        return [Path(text) for text in _recipe_program(recipe, platform, output, _FIRST_LEVEL)]


def _recipe_program(recipe: Path, platform: Platform, *words: str | Path) -> list[Any]:
    """What the program answers. It is a process of its own, so that an interrupt ends it."""
    program: list[str | Path] = [sys.executable, "-m", "lmsbuild.programs.conda_recipe", recipe, platform.subdir]
    finished = command.run([*program, *words], folder=recipe.parent)
    report.output(finished.text)
    if finished.code:
        said = [line for line in (finished.error_text + finished.text).splitlines() if line.strip()]
        raise CondaBuildFailed(
            f"the recipe failed: {said[-1].strip() if said else 'it said nothing'}\n  Run again with -v for all that it said."
        )
    answer: list[Any] = json.loads(finished.text.splitlines()[-1])
    return answer
