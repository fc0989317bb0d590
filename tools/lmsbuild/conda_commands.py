"""The commands for conda packages and channels; what they need is imported when they are called, as in cli.py."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmsbuild import paths, report
from lmsbuild.conda import LARGEST_NUMBER, LEVEL
from lmsbuild.errors import ContradictingWheel, NoSuchFile, WrongPlatform, WrongVersion

if TYPE_CHECKING:
    from lmsbuild.catalogue.catalogue import Tag
    from lmsbuild.conda.platforms import Platform

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path)
_channels = click.option(
    "--channel",
    "channels",
    multiple=True,
    default=("conda-forge",),
    show_default=True,
    help="Where what the package requires comes from, for the tests inside it; may be given again.",
)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Show every command that runs.")


@click.group(name="conda")
def conda_group() -> None:
    """Build conda packages with Large Model Support."""


def _package_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of the commands that build a package."""
    options = (
        click.argument("tag"),
        click.option("--wheel", type=_FILE, help="A patched wheel of TAG; without it, one is built."),
        click.option("--python", help="Interpreter to build for, such as 3.12; without it, the running one."),
        click.option("--platform", help="Platform to build for, such as linux-aarch64; without it, this machine's."),
        click.option(
            "--base",
            multiple=True,
            metavar="FILE",
            help="A wheel or conda package without LMS, given again for each part of a split package, or `debian` for "
            "Debian's build; without it, the official wheel, or where there is none what Debian has.",
        ),
        _channels,
        click.option(
            "--test/--no-test", default=True, show_default=True, help="Run the package's tests in an environment."
        ),
        click.option("--level", type=click.IntRange(1, 22), default=LEVEL, show_default=True, help="Of compression."),
        click.option(
            "--number",
            type=click.IntRange(0, LARGEST_NUMBER),
            help="Number of the build, a CUDA build has 100000 more; without it, one that rises with LMS's own version.",
        ),
        click.option("--dry-run", is_flag=True, help="Only say what would be built, and what it would require."),
        click.option("--prepare", type=_FOLDER, help="Only write what the recipe needs into this new folder."),
        click.option(
            "--output", type=_FOLDER, default=Path("dist"), show_default=True, help="Folder for wheel and package."
        ),
        _verbose,
    )
    for option in reversed(options):
        command = option(command)
    return command


@conda_group.command(name="pytorch")
@_package_options
def pytorch_package(tag: str, **asked: Any) -> None:
    """Build the conda package `pytorch` of TAG, such as v2.13.0, out of its patched wheel."""
    from lmsbuild.catalogue import catalogue

    _build(catalogue.find_tag(paths.patches_folder(), tag, "pytorch"), **asked)


@conda_group.command(name="tensorflow")
@_package_options
@click.option(
    "--package", help="Which of the framework's wheels, such as tensorflow-cpu; without it, the first that it has."
)
def tensorflow_package(tag: str, package: str | None, **asked: Any) -> None:
    """Build the conda package `tensorflow` of TAG, such as v2.14.1, out of its patched wheel."""
    from lmsbuild.catalogue import catalogue

    found = catalogue.find_tag(paths.patches_folder(), tag, "tensorflow")
    _build(catalogue.of_package(found, package), **asked)


def _build(
    tag: Tag,
    *,
    wheel: Path | None,
    python: str | None,
    platform: str | None,
    base: tuple[str, ...],
    channels: tuple[str, ...],
    test: bool,
    level: int,
    number: int | None,
    dry_run: bool,
    prepare: Path | None,
    output: Path,
    verbose: bool,
) -> None:
    from lmsbuild.conda import package_tests, packager
    from lmsbuild.conda.platforms import find_platform
    from lmsbuild.wheel.target import target_for

    report.configure(verbose=verbose)
    recipes = paths.recipes_folder()
    if wheel is not None:
        if base:
            raise ContradictingWheel(
                "--wheel is patched already, and --base is what one is made of: leave out one of them"
            )
        _check_wheel(wheel, tag, python, find_platform(recipes, platform) if platform else None)
    if prepare is not None:
        packager.check_new(prepare)
    where = find_platform(recipes, platform or (_machine_of(wheel) if wheel else target_for(python).machine))
    if dry_run:
        _say(tag, wheel, where, python, base, number, output)
        return
    packager.check_tools()
    test = test and prepare is None and packager.can_test(where)
    if test:
        package_tests.check_channels(channels, where.subdir)  # before minutes of work, not after
    requires: tuple[str, ...] = ()
    if wheel is None:
        wheel, requires = _build_wheel(tag, where, python, base, output)
    if prepare is not None:
        click.echo(packager.prepare(wheel, recipes, prepare, requires, number))
        return
    threads = os.cpu_count() or 1
    options = packager.Options(wheel, recipes, output, channels, test, level, threads, requires, number)
    for package in packager.build(options):
        click.echo(package)


def _check_wheel(wheel: Path, tag: Tag, python: str | None, where: Platform | None) -> None:
    """Raises NoSuchFile, WrongPlatform, WrongVersion, or ContradictingWheel when the wheel is for another machine or interpreter."""
    from lmsbuild.wheel.name import parse_name
    from lmsbuild.wheel.target import target_for

    if not wheel.is_file():
        raise NoSuchFile(
            f"there is no wheel {wheel}: build it with `lmsbuild {tag.framework} {tag.name}`, or leave out --wheel to have it "
            "built"
        )
    name = parse_name(wheel)
    if name.package not in tag.packages or name.version.public != tag.version:
        needed = " or ".join(tag.packages)
        raise WrongVersion(
            f"{wheel.name} is {name.package} {name.version}, but {tag.name} needs {tag.version} of {needed}"
        )
    if where and _machine_of(wheel) != where.machine:
        raise ContradictingWheel(
            f"--wheel {wheel.name} is for {_machine_of(wheel)}, --platform is {where.subdir}: leave out one of them"
        )
    if python and all(each.abi != target_for(python).interpreter for each in name.tags):
        built_for = min(each.abi for each in name.tags)
        raise ContradictingWheel(
            f"--wheel {wheel.name} is for {built_for}, --python is {python}: leave out one of them"
        )


def _machine_of(wheel: Path) -> str:
    from lmsbuild.wheel.name import parse_name
    from lmsbuild.wheel.target import machine_of

    return machine_of(parse_name(wheel).platforms[0])


def _say(
    tag: Tag,
    wheel: Path | None,
    where: Platform,
    python: str | None,
    base: tuple[str, ...],
    number: int | None,
    output: Path,
) -> None:
    """Prints what would be built, and of a wheel that is there what the packages would require."""
    from lmsbuild.bases import bases
    from lmsbuild.catalogue import catalogue
    from lmsbuild.conda import packager
    from lmsbuild.patch import series
    from lmsbuild.wheel.target import target_for

    if wheel is not None:
        for planned in packager.plan(wheel, paths.recipes_folder(), number):
            click.echo(output / where.subdir / planned.file)
            for need in planned.requires:
                click.echo(f"  requires {need}")
        return
    build = bases.debian_build(tag, where, python, base, paths.patches_folder())
    target = target_for(python or (build.python if build else None))
    if build is None:
        bases.check_given(tag, where, python, base)
    if build or base:
        click.echo(f"the wheel, out of {'the build of Debian' if build else ' and '.join(base)}")
    else:
        if lacking := tag.lacking(target.interpreter, where.machine):
            raise WrongPlatform(f"{lacking}: choose another --python, or give a wheel or a conda package with --base")
        package = catalogue.package_words(paths.patches_folder(), tag.framework, tag.package)
        words = ["--python", target.python, "--platform", where.subdir, *package, "--output", str(output)]
        click.echo(f"the wheel, as by: {shlex.join(['lmsbuild', tag.framework, tag.name, *words])}")
    label = series.read_series(paths.patches_folder(), tag).graft.label
    built = f"*_py{target.interpreter.removeprefix('cp')}_{label}_*"
    click.echo(f"{output / where.subdir / tag.framework}-{tag.version}-{built}.conda, cpu or CUDA as the wheel is")


@conda_group.command(name="test")
@click.argument("packages", nargs=-1, required=True, type=_FILE)
@_channels
@_verbose
def test_packages(packages: tuple[Path, ...], channels: tuple[str, ...], verbose: bool) -> None:
    """Run the tests inside PACKAGES, each in an environment of its own."""
    from lmsbuild.conda import package_file, package_tests, packager

    report.configure(verbose=verbose)
    packager.check_tools()
    for package in packages:
        index = package_file.read_description(package)["index"]
        package_tests.check_channels(channels, index["subdir"])
        there = package_tests.run(package, channels)
        click.echo(f"{package}: {'its tests passed' if there else 'there are no tests in it'}")


def _build_wheel(
    tag: Tag, where: Platform, python: str | None, given: tuple[str, ...], output: Path
) -> tuple[Path, tuple[str, ...]]:
    """The patched wheel, and what its package requires beside what its metadata says."""
    from lmsbuild.bases import bases
    from lmsbuild.conda.platforms import target_on
    from lmsbuild.graft import graft

    target_on(where, python)  # before minutes of work, not after
    patches, cache = paths.patches_folder(), paths.cache_folder()
    with bases.base(tag, where, python, given, patches, cache, output) as base:
        target = target_on(where, python or base.python)
        return graft.build(graft.Options(tag, target, patches, cache, output, base.wheel)), base.requires


@click.group(name="channel")
def channel_group() -> None:
    """Publish conda packages in a folder, check and repair what was published."""


@channel_group.command(name="publish")
@click.argument("channel_folder", metavar="DIR", type=_FOLDER)
@click.argument("packages", nargs=-1, type=_FILE)
@_verbose
def publish_packages(channel_folder: Path, packages: tuple[Path, ...], verbose: bool) -> None:
    """Add PACKAGES to the channel in DIR, and index it."""
    from lmsbuild.channel import channel

    report.configure(verbose=verbose)
    done = channel.publish(channel_folder, packages)
    for name in done.added:
        click.echo(name)
    report.note(f"{len(done.added)} added, {done.known} there before, {done.hashed} files read")


@channel_group.command(name="repair")
@click.argument("channel_folder", metavar="DIR", type=_FOLDER)
@_verbose
def repair_channel(channel_folder: Path, verbose: bool) -> None:
    """Make the channel in DIR readable again, and check it.

    Bad packages are set aside in DIR/set-aside, and the index is written anew from the good ones. Nothing is deleted.
    """
    from lmsbuild.channel import repair

    report.configure(verbose=verbose)
    for sentence in repair.repair(channel_folder):
        click.echo(sentence)
    _check(channel_folder)


@channel_group.command(name="check")
@click.argument("channel_folder", metavar="DIR", type=_FOLDER)
@_verbose
def check_channel(channel_folder: Path, verbose: bool) -> None:
    """Check every hash of the channel in DIR, every dependency that it can satisfy, every ELF file."""
    report.configure(verbose=verbose)
    _check(channel_folder)


def _check(channel_folder: Path) -> None:
    from lmsbuild.channel import audit

    count = audit.check(channel_folder, paths.recipes_folder())
    click.echo(f"{channel_folder}: {count} packages, all as the index says")
