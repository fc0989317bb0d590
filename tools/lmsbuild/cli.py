"""The command line."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from lmsbuild import catalogue, command, doctor, graft, paths, report, series, trial
from lmsbuild.errors import Failure, NoSuchFile, StalePatch, disk_failures
from lmsbuild.patch import apply_to_checkout, read_patch
from lmsbuild.target import target_for

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Show every command that runs.")
_base_wheel = click.option("--base-wheel", type=_FILE, help="An official wheel; without it, pip fetches one.")


class _Commands(click.Group):
    """Suggests the nearest framework for a command that does not exist."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if arguments and not arguments[0].startswith("-") and self.get_command(context, arguments[0]) is None:
            catalogue.check_framework(paths.patches_folder(), arguments[0])
        return super().resolve_command(context, arguments)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lmsbuild")
def cli() -> None:
    """Builds framework wheels with Large Model Support: training in more memory than there is."""


@cli.command()
@click.argument("tag")
@click.option("--python", help="Interpreter to build for, such as 3.12; without it, the running one.")
@_base_wheel
@click.option("--output", type=_FOLDER, default=Path("dist"), show_default=True, help="Folder for the wheel.")
@_verbose
def pytorch(tag: str, python: str | None, base_wheel: Path | None, output: Path, verbose: bool) -> None:
    """Build a PyTorch wheel of TAG, such as v2.13.0, with Large Model Support."""
    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    options = graft.Options(
        tag=catalogue.find_tag(patches, tag, "pytorch"),
        target=target_for(python),
        patches=patches,
        cache=paths.cache_folder(),
        output=output,
        base_wheel=base_wheel,
    )
    click.echo(graft.build(options))


@cli.command(name="list")
def list_tags() -> None:
    """List the tags and what each supports."""
    for tag in catalogue.tags(paths.patches_folder()):
        click.echo(
            f"{tag.framework} {tag.name}: {tag.package} {tag.version}, pages tensors on {', '.join(tag.supports)}"
        )
        click.echo(f"  official wheels known for {', '.join(tag.interpreters)}")


@cli.command()
@click.argument("tag")
@click.argument("tree", type=_FOLDER)
@_verbose
def patch(tag: str, tree: Path, verbose: bool) -> None:
    """Apply the patch of TAG to the git checkout TREE."""
    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    found = read_patch(patches / catalogue.find_tag(patches, tag).patch_name)
    count = apply_to_checkout(found, tree)
    click.echo(f"{tree}: {count} commits on top of {tag}")


@cli.command()
@click.argument("tag")
@_base_wheel
@click.option("--check", is_flag=True, help="Write nothing; fail when the committed patch is not current.")
@_verbose
def generate(tag: str, base_wheel: Path | None, check: bool, verbose: bool) -> None:
    """Make the .patch file of TAG from its sources."""
    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    found = catalogue.find_tag(patches, tag)
    cache = paths.cache_folder()
    with disk_failures(cache):
        originals = graft.originals(found, cache, base_wheel)
    generated = series.generate(patches, found, originals)
    target = patches / found.patch_name
    if not check:
        with disk_failures(target):
            target.write_bytes(generated)
        click.echo(target)
    elif not target.is_file() or target.read_bytes() != generated:
        raise StalePatch(f"{target.name} is not what its sources generate: run `lmsbuild generate {found.name}`")


@cli.command(name="try")
@click.argument("wheel", type=_FILE)
@click.option("--output", type=_FOLDER, default=Path("dist"), show_default=True, help="Folder for the picture.")
@click.option("--model", default="transformer", show_default=True, help="Which of the models to train.")
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True, help="Steps to train.")
@_verbose
def try_wheel(wheel: Path, output: Path, model: str, steps: int, verbose: bool) -> None:
    """Train a model three times its memory limit with the patched WHEEL, and compare with an unlimited run."""
    report.configure(verbose=verbose)
    if not wheel.is_file():
        raise NoSuchFile(f"there is no file {wheel}: build one with `lmsbuild pytorch`")
    with disk_failures(output):
        click.echo(trial.run(wheel, output, model, steps))


@cli.command(name="doctor")
@click.option("--output", type=_FOLDER, default=Path("dist"), show_default=True, help="Folder for wheels.")
@_verbose
def check_machine(output: Path, verbose: bool) -> None:
    """Check that this machine can build, and say what is missing and what mends it."""
    report.configure(verbose=verbose)
    doctor.run(paths.cache_folder(), output)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends the tool as Ctrl-C does."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def main() -> None:
    """Runs the command line; failures become one message and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        cli.main(standalone_mode=False)
    except Failure as error:
        report.failure(str(error))
        sys.exit(error.exit_code)
    except click.exceptions.Abort as error:
        _interrupted(signal.SIGTERM if isinstance(error.__cause__, _Terminated) else signal.SIGINT)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _interrupted(signal.SIGINT)


def _interrupted(number: signal.Signals) -> NoReturn:
    command.kill_all()
    report.failure("interrupted")
    sys.exit(128 + number)
