"""The commands `matrix` and `build-all`; what they need is imported when they are called, as in cli.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from lmsbuild import paths, report
from lmsbuild.matrix.row import KINDS

_FILTERS = (
    ("--framework", "frameworks", "A framework, such as pytorch."),
    ("--tag", "tags", "A tag, such as v2.13.0."),
    ("--package", "packages", "A package whose wheel is patched, such as tensorflow-cpu."),
    ("--python", "pythons", "An interpreter, such as 3.12."),
    ("--platform", "platforms", "A platform, such as linux-aarch64."),
    ("--kind", "kinds", "A kind of package."),
    ("--name", "names", "A row, by its name."),
)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    """The options that choose rows."""
    command = click.option("--shard", default="", metavar="N/COUNT", help="A part of the rows, such as 2/4.")(command)
    for option, field, text in reversed(_FILTERS):
        values = click.Choice(KINDS) if field == "kinds" else click.STRING
        command = click.option(option, field, multiple=True, type=values, help=f"{text} May be given again.")(command)
    return command


@click.command(name="matrix")
@_filters
def print_matrix(**asked: str | tuple[str, ...]) -> None:
    """Print what can be built as JSON, on one line, as `strategy.matrix` of GitHub's workflows takes it."""
    from lmsbuild.matrix import matrix

    filters = matrix.Filters(**asked)  # type: ignore[arg-type]
    rows = matrix.select(paths.patches_folder(), paths.recipes_folder(), filters)
    if len(rows) > matrix.MOST_JOBS:
        parts = matrix.shards_needed(rows)
        report.note(
            f"{len(rows)} rows; GitHub takes {matrix.MOST_JOBS} at most: choose some, or take --shard 1/{parts}"
        )
    click.echo(json.dumps(matrix.document(rows)))


@click.command(name="build-all")
@_filters
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("dist"), show_default=True, help="Folder for all files."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Rows at once; without it, one, which takes all processors.")
@click.option("--dask", "scheduler", metavar="ADDRESS", help="Build on the cluster of this Dask scheduler.")
@click.option("--channel", "channels", multiple=True, help="As for `lmsbuild conda`.")
@click.option("--test/--no-test", default=True, show_default=True, help="As for `lmsbuild conda`.")
def build_rows(
    output: Path,
    jobs: int | None,
    scheduler: str | None,
    channels: tuple[str, ...],
    test: bool,
    **asked: str | tuple[str, ...],
) -> None:
    """Build all that can be built and is not up to date in --output; without --platform or --name, for this kind of machine.

    A row that fails does not stop the others. After an interruption, the same command goes on.
    """
    from lmsbuild.conda.platforms import find_platform
    from lmsbuild.matrix import board, build_all, matrix
    from lmsbuild.wheel.target import target_for

    if scheduler is not None and jobs:
        raise click.UsageError("--jobs is for this machine; with --dask, each thread of a worker builds a row")
    recipes = paths.recipes_folder()
    if not asked["platforms"] and not asked["names"]:
        asked["platforms"] = (find_platform(recipes, target_for(None).machine).subdir,)
    rows = matrix.select(paths.patches_folder(), recipes, matrix.Filters(**asked))  # type: ignore[arg-type]
    conda = [word for channel in channels for word in ("--channel", channel)] + ([] if test else ["--no-test"])
    outcomes = build_all.build(build_all.Options(rows, output, jobs or 1, scheduler, tuple(conda)))
    board.show(outcomes)
    build_all.check(outcomes, output)
