"""The command line.

What a command needs is imported when it is called, so that `lmsbuild --help` and the like answer at once. What of that cannot be
loaded, `refusals` says; a signal meanwhile waits, see `signals`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lmsbuild import paths, report
from lmsbuild.conda_commands import channel_group, conda_group
from lmsbuild.ending import refusals, signals, streams
from lmsbuild.errors import (
    AlreadyApplied,
    ChecksFailed,
    Failure,
    NoSuchFile,
    NotACheckout,
    ReaderGone,
    StalePatch,
    WrongPlatform,
    disk_failures,
)
from lmsbuild.matrix.commands import build_rows, print_matrix

if TYPE_CHECKING:
    from lmsbuild.catalogue.catalogue import Tag

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Show every command that runs.")


def _existing_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Opening a pipe would wait for a writer, and a device has no end."""
    if path and path.exists() and not path.is_file():
        raise NoSuchFile(f"{path} is no file")
    return path


_base_wheel = click.option(
    "--base",
    "--base-wheel",
    "base_wheel",
    type=_FILE,
    callback=_existing_file,
    help="An official wheel; without it, pip fetches one.",
)
_package = click.option(
    "--package", help="Which of the framework's packages, such as tensorflow-cpu; without it, the first that it lists."
)
_source = click.option(
    "--source",
    "source_",
    metavar="DIR|URL|debian",
    help="A clone, a bundle or a mirror to take instead of upstream's repository, or the word debian: its archive.",
)


class _Commands(click.Group):
    """Suggests the nearest framework for a command that does not exist."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if arguments and not arguments[0].startswith("-") and self.get_command(context, arguments[0]) is None:
            from lmsbuild.catalogue import catalogue

            catalogue.check_framework(paths.patches_folder(), arguments[0])
        return super().resolve_command(context, arguments)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lmsbuild")
def cli() -> None:
    """Builds framework wheels with Large Model Support: training in more memory than there is."""


def _build_options(command_: Callable[..., None]) -> Callable[..., None]:
    """The options of the commands that build a wheel."""
    options = (
        click.argument("tag"),
        click.option("--python", help="Interpreter to build for, such as 3.12; without it, the running one."),
        click.option("--platform", help="Platform to build for, such as linux-aarch64; without it, this machine's."),
        _base_wheel,
        click.option("--output", type=_FOLDER, default=Path("dist"), show_default=True, help="Folder for the wheel."),
        click.option(
            "--mode",
            type=click.Choice(["graft", "full"]),
            default="graft",
            show_default=True,
            help="Patch the official wheel, in a minute, or run the framework's own build, for hours.",
        ),
        _source,
        click.option(
            "--jobs", type=click.IntRange(min=1), help="Compilers at once; without it, as many as memory allows."
        ),
        click.option("--resume", is_flag=True, help="Go on with a full build that did not end."),
        click.option("--dry-run", is_flag=True, help="Print the commands of a full build, to be run by hand."),
        _verbose,
    )
    for option in reversed(options):
        command_ = option(command_)
    return command_


@cli.command()
@_build_options
def pytorch(tag: str, **asked: Any) -> None:
    """Build a PyTorch wheel of TAG, such as v2.13.0, with Large Model Support."""
    from lmsbuild.catalogue import catalogue

    _build(catalogue.find_tag(paths.patches_folder(), tag, "pytorch"), **asked)


@cli.command()
@_build_options
@_package
def tensorflow(tag: str, package: str | None, **asked: Any) -> None:
    """Build a TensorFlow wheel of TAG, such as v2.14.1, with Large Model Support."""
    from lmsbuild.catalogue import catalogue

    _build(catalogue.find_tag(paths.patches_folder(), tag, "tensorflow"), package, **asked)


def _build(
    found: Tag,
    package: str | None = None,
    *,
    python: str | None,
    platform: str | None,
    base_wheel: Path | None,
    output: Path,
    mode: str,
    source_: str | None,
    jobs: int | None,
    resume: bool,
    dry_run: bool,
    verbose: bool,
) -> None:
    from lmsbuild.catalogue import catalogue
    from lmsbuild.conda.platforms import find_platform, target_on
    from lmsbuild.full import full, plan
    from lmsbuild.graft import graft
    from lmsbuild.wheel.target import target_for

    report.configure(verbose=verbose)
    patches, cache = paths.patches_folder(), paths.cache_folder()
    tag = catalogue.of_package(found, package)
    if mode == "full":
        if base_wheel or package or platform:
            raise click.UsageError(
                f"--mode full builds {found.package} from source: it takes none of --base, --package and --platform"
            )
        planned = plan.make(plan.Options(tag, patches, cache, output, python, source_, jobs))
        if dry_run:
            for lacking in plan.missing(planned):
                report.note(f"missing: {lacking}")
            click.echo("\n".join(plan.lines(planned)))
        else:
            click.echo(full.build(planned, resume=resume))
        return
    if source_ or jobs or resume or dry_run:
        raise click.UsageError("--source, --jobs, --resume and --dry-run are for --mode full; a graft needs no source")
    where = find_platform(paths.recipes_folder(), platform) if platform else None
    if where and base_wheel is None and tag.machines and where.machine not in tag.machines:
        raise WrongPlatform(
            f"there is no official wheel of {tag.package} {tag.version} for {where.subdir}: give a wheel that others built with "
            "--base, or take `lmsbuild conda`, which knows what else there is; docs/tags.md has a table"
        )
    target = target_on(where, python) if where else target_for(python)
    click.echo(graft.build(graft.Options(tag, target, patches, cache, output, base_wheel)))


@cli.command(name="list")
def list_tags() -> None:
    """List the tags and what each supports."""
    from lmsbuild.catalogue import catalogue, debian_builds

    patches = paths.patches_folder()
    builds = {framework: debian_builds.by_tag(patches, framework) for framework in catalogue.frameworks(patches)}
    for tag in catalogue.tags(patches):
        click.echo(
            f"{tag.framework} {tag.name}: {' or '.join(tag.packages)} {tag.version}, pages tensors on "
            f"{', '.join(tag.supports)}"
        )
        for machine, interpreters in tag.machines.items():
            click.echo(f"  official wheels for {machine}: {', '.join(interpreters)}")
        for build in builds[tag.framework].get(tag.name, ()):
            click.echo(f"  Debian's build for {build.machine}: {build.interpreter}")


@cli.command(name="source")
@click.argument("tag")
@click.argument("tree", type=_FOLDER)
@_source
@click.option("--whole", is_flag=True, help="Everything, with submodules; without it, what applying the patch needs.")
@_verbose
def get_source(tag: str, tree: Path, source_: str | None, whole: bool, verbose: bool) -> None:
    """Make the git checkout TREE of upstream's source at TAG, and verify it."""
    from lmsbuild.catalogue import catalogue
    from lmsbuild.source import source

    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    found = catalogue.find_tag(patches, tag)
    options = source.Options(found, patches, paths.cache_folder(), tree, source=source_, whole=whole)
    click.echo(f"{tree}: {source.obtain(options)}")


@cli.command()
@click.argument("tag")
@click.argument("tree", type=_FOLDER)
@click.option("--idempotent", is_flag=True, help="Succeed when the patch is applied already.")
@_verbose
def patch(tag: str, tree: Path, idempotent: bool, verbose: bool) -> None:
    """Apply the patch of TAG to the git checkout TREE."""
    from lmsbuild.catalogue import catalogue
    from lmsbuild.patch.patch import apply_to_checkout, find_patch

    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    known = catalogue.find_tag(patches, tag)
    found = find_patch(patches, known)
    try:
        count = apply_to_checkout(found, tree, known, catalogue.tags(patches), patches)
    except AlreadyApplied as error:
        if not idempotent:
            raise
        click.echo(error)
    else:
        click.echo(f"{tree}: {count} commits on top of {known.name}")


@cli.command(name="generate")
@click.argument("tags", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Make the hooks of every tag that there is.")
@_base_wheel
@click.option("--check", is_flag=True, help="Write nothing; fail when one of them is not current.")
@_verbose
def generate_patches(tags: tuple[str, ...], every: bool, base_wheel: Path | None, check: bool, verbose: bool) -> None:
    """Make the .patch files from their sources: the series, which all tags share, and the hooks of TAGS.

    Hooks need the files of upstream's that they edit: those of the official wheel are fetched, and kept. Of the hooks of other
    tags it is only checked that they are there.
    """
    from lmsbuild.catalogue import catalogue
    from lmsbuild.graft import graft
    from lmsbuild.patch import generate

    report.configure(verbose=verbose)
    if not paths.in_checkout():
        raise NotACheckout(
            "this lmsbuild is an installed package, whose patches are made: to change them, run `pip install -e .` in a checkout"
        )
    if base_wheel and len(tags) != 1:
        raise click.UsageError("--base goes with one tag.")
    patches, cache = paths.patches_folder(), paths.cache_folder()
    chosen = _chosen(patches, tags, every) if tags or every else []
    frameworks = {tag.framework for tag in chosen} or catalogue.frameworks(patches)
    wanted: generate.Wanted = {}
    for framework in frameworks:
        wanted |= generate.series(patches, framework)
    for tag in chosen:
        with disk_failures(cache):
            originals = graft.originals(patches, tag, cache, base_wheel)
        wanted |= generate.hook(patches, tag, originals)
    if check:
        if stale := generate.stale(wanted):
            words = " ".join(["lmsbuild generate", *(["--all"] if every else [tag.full_name for tag in chosen])])
            more = f", and {len(stale) - 1} more are not" if stale[1:] else ""
            raise StalePatch(f"{stale[0]} is not what its sources generate{more}: run `{words}`")
    else:
        with disk_failures(patches):
            for path in generate.write(wanted):
                click.echo(path)
    if lacking := generate.missing_hooks(patches, frameworks):
        names = " ".join(tag.full_name for tag in lacking)
        raise StalePatch(
            f"{len(lacking)} of the hooks are missing, or start from other files than tags.toml says: run "
            f"`lmsbuild generate {names}`"
        )


@cli.command(name="patches")
@click.argument("tags", nargs=-1)
@click.option("--output", type=_FOLDER, required=True, help="Folder for the files, which is made when it is missing.")
@_verbose
def join_patches(tags: tuple[str, ...], output: Path, verbose: bool) -> None:
    """Join the patches of each of TAGS, or of every tag, to one file, which `git am` takes: for release pages."""
    from lmsbuild.catalogue import rows
    from lmsbuild.patch import generate
    from lmsbuild.patch.patch import find_patch

    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    chosen = _chosen(patches, tags, every=not tags)
    for framework in {tag.framework for tag in chosen}:
        if stale := generate.stale(generate.series(patches, framework)):
            raise StalePatch(f"{stale[0]} is not what its sources generate: run `lmsbuild generate`")
    for tag in {tag.full_name: tag for tag in chosen}.values():
        joined = find_patch(patches, tag).joined
        with disk_failures(output):
            output.mkdir(parents=True, exist_ok=True)
            rows.replace_file(output / tag.patch_name, joined)
        click.echo(output / tag.patch_name)


def _chosen(patches: Path, names: tuple[str, ...], every: bool) -> list[Tag]:
    """The tags of these names, or every tag."""
    from lmsbuild.catalogue import catalogue

    if bool(names) == every:
        raise click.UsageError("Name tags, or give --all.")
    return catalogue.tags(patches) if every else [catalogue.find_tag(patches, name) for name in names]


@cli.command(name="try")
@click.argument("wheel", type=_FILE)
@click.option("--output", type=_FOLDER, default=Path("dist"), show_default=True, help="Folder for the picture.")
@click.option("--model", default="transformer", show_default=True, help="Which of the models to train.")
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True, help="Steps to train.")
@click.option("--python", type=_FILE, help="The interpreter that the wheel is for; without it, the running one.")
@_verbose
def try_wheel(wheel: Path, output: Path, model: str, steps: int, python: Path | None, verbose: bool) -> None:
    """Train a model three times its memory limit with the patched WHEEL, and compare with an unlimited run."""
    from lmsbuild.trial import trial

    report.configure(verbose=verbose)
    if not os.path.lexists(wheel):
        raise NoSuchFile(f"there is no file {wheel}: build one with `lmsbuild pytorch`")
    with disk_failures(output):
        click.echo(trial.run(wheel, output, model, steps, python))


@cli.group(name="tag")
def tag_group() -> None:
    """Add tags to the catalogue, and check those that it has."""


@tag_group.command(name="add")
@click.argument("framework")
@click.argument("tags", nargs=-1, required=True)
@click.option("--python", help="Interpreter whose wheel is read and tried, such as 3.12; without it, the running one.")
@click.option("--update", is_flag=True, help="Read a tag anew that is in the catalogue already.")
@_base_wheel
@_package
@_verbose
def add(
    framework: str,
    tags: tuple[str, ...],
    python: str | None,
    update: bool,
    base_wheel: Path | None,
    package: str | None,
    verbose: bool,
) -> None:
    """Add TAGS, such as v2.16.0, to the catalogue of FRAMEWORK, with their patches.

    What there is to know is read off the release's official wheel. Before anything is written, the patched wheel is built,
    and a model trained with it. Several tags share the environment for that, so that less is downloaded.
    """
    from lmsbuild.catalogue import catalogue
    from lmsbuild.tag import add_tag
    from lmsbuild.trial import trial
    from lmsbuild.wheel.target import target_for

    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    catalogue.check_framework(patches, framework)
    if base_wheel and len(tags) != 1:
        raise click.UsageError("--base goes with one tag.")
    target = target_for(python)
    options = add_tag.Options(
        framework=framework,
        names=tuple(tag if tag.startswith("v") else f"v{tag}" for tag in tags),
        target=target,
        interpreter=None if target.is_running else trial.find_interpreter(target.python),
        patches=patches,
        cache=paths.cache_folder(),
        base_wheel=base_wheel,
        update=update,
        package=package,
    )
    for said in add_tag.add(options):
        click.echo(said)


@tag_group.command(name="check")
@click.argument("tags", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Check every tag that there is.")
@click.option("--smoke", is_flag=True, help="Also install each patched wheel and train a model with it.")
@click.option("--table", type=_FILE, help="Write the results to this file, such as docs/tags.md.")
@_package
@_verbose
def check(
    tags: tuple[str, ...], every: bool, smoke: bool, table: Path | None, package: str | None, verbose: bool
) -> None:
    """Compile and link the graft of each of TAGS against its official wheel, and make all checks of a build."""
    from lmsbuild.catalogue import catalogue
    from lmsbuild.tag import check_tags, platform_table

    report.configure(verbose=verbose)
    patches = paths.patches_folder()
    # With --all a package stands for the tags of its framework.
    only = catalogue.framework_of(patches, package) if every and package else None
    fitting = [tag for tag in _chosen(patches, tags, every) if only in (None, tag.framework)]
    chosen = [catalogue.of_package(tag, package) for tag in fitting]
    cache = paths.cache_folder()
    with disk_failures(cache):
        results = check_tags.check(chosen, patches, cache, smoke)
    if table:
        with disk_failures(table):
            before = table.read_text() if table.is_file() and (package or not every) else ""
            table.write_text(check_tags.table(results, before, platform_table.text(patches)))
    else:
        click.echo(check_tags.table(results), nl=False)
    if failed := [result.tag.name for result in results if result.failure]:
        raise ChecksFailed(f"{len(failed)} of {len(results)} tags failed: {', '.join(failed)}")


@cli.command(name="doctor")
@click.option("--output", type=_FOLDER, default=Path("dist"), show_default=True, help="Folder for wheels.")
@_verbose
def check_machine(output: Path, verbose: bool) -> None:
    """Check that this machine can build, and say what is missing and what mends it."""
    from lmsbuild import doctor

    report.configure(verbose=verbose)
    doctor.run(paths.cache_folder(), output)


@cli.command(name="index")
@click.argument("index_folder", metavar="DIR", type=_FOLDER)
@click.argument("wheels", nargs=-1, type=_FILE)
@_verbose
def index_wheels(index_folder: Path, wheels: tuple[Path, ...], verbose: bool) -> None:
    """Make DIR, with WHEELS and those that lie there, an index for pip and uv."""
    from lmsbuild.index import index

    report.configure(verbose=verbose)
    done = index.publish(index_folder, wheels)
    for name in done.added:
        click.echo(name)
    report.note(f"{len(done.added)} added, {done.known} there before, {done.hashed} files read")


cli.add_command(conda_group)
cli.add_command(channel_group)
cli.add_command(print_matrix)
cli.add_command(build_rows)


def main() -> None:
    """Runs the command line; failures become one message and an exit code."""
    signals.install()
    try:
        with refusals.refused():
            cli.main(standalone_mode=False)
            streams.finish()
    except ReaderGone as error:
        sys.exit(error.exit_code)
    except Failure as error:
        report.failure(str(error))
        sys.exit(error.exit_code)
    except click.exceptions.Abort as error:
        _interrupted(error.__cause__)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        with suppress(ReaderGone):
            click.echo(report.verbatim(said.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as error:
        _interrupted(error)


def _interrupted(cause: BaseException | None) -> NoReturn:
    from lmsbuild import command  # which is loaded already if a program runs

    command.kill_all(for_good=True)
    number = signal.Signals(cause.number) if isinstance(cause, signals.Ended) else signal.SIGINT
    report.failure("interrupted" if number == signal.SIGINT else f"interrupted by {number.name}")
    sys.exit(128 + number)
