"""Builds the rows of the matrix that are not up to date; what one run did, the next one need not do again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.catalogue import rows as files
from lmsbuild.errors import BuildUnfinished, RowsFailed, disk_failures
from lmsbuild.lock import held
from lmsbuild.matrix import board, cluster, local, stamp
from lmsbuild.matrix.build_row import Job, Outcome
from lmsbuild.matrix.row import KINDS, Row


@dataclass(frozen=True)
class Options:
    rows: Sequence[Row]
    output: Path
    at_once: int  # rows on this machine
    scheduler: str | None  # of a Dask cluster, which builds them in place of this machine
    conda: tuple[str, ...]  # options of `lmsbuild conda`


def build(options: Options) -> list[Outcome]:
    """Builds what is not up to date, and returns what became of each row. Raises RowsFailed when that is a failure for some."""
    output = options.output.resolve()
    done: dict[Row, Outcome] = {}
    taken = BuildUnfinished(f"another run builds in {output}: wait for it, or choose another --output")
    with disk_failures(output), held(output / stamp.FOLDER / "lock", taken):
        shown = board.Board(len(options.rows))
        try:
            with shown.shown():
                for outcome in _outcomes(options, output, shown):
                    done[outcome.row] = outcome
                    shown.end(outcome)
        finally:
            outcomes = [done.get(row, Outcome(row, "not run")) for row in options.rows]
            _write_report(output, outcomes)
    return outcomes


def check(outcomes: Sequence[Outcome], output: Path) -> None:
    """Raises RowsFailed when one of them is a failure."""
    if failed := [outcome.row.name for outcome in outcomes if outcome.state == "failed"]:
        more = f" and {len(failed) - 1} more" if failed[1:] else ""
        raise RowsFailed(
            f"{len(failed)} of {len(outcomes)} rows failed: {failed[0]}{more}; {output / stamp.FOLDER} has a log of each. The "
            "same command tries them again"
        )


def _outcomes(options: Options, output: Path, shown: board.Board) -> Iterator[Outcome]:
    jobs = []
    tags = {(tag.framework, tag.name): tag for tag in catalogue.tags(paths.patches_folder())}
    # Wheels first: a package is made from the wheel that is there.
    for row in sorted(options.rows, key=lambda row: KINDS.index(row.kind)):
        made_from = stamp.inputs(row, options.conda, tags.get((row.framework, row.tag)))
        products = stamp.read(output, row, made_from)
        if products is not None:
            yield Outcome(row, "up to date", products=tuple(products))
        else:
            jobs.append(Job(row, output, options.conda, made_from))
    if jobs and options.scheduler is not None:
        yield from cluster.build(jobs, options.scheduler)
    elif jobs:
        yield from local.build(jobs, options.at_once, shown)


def _write_report(output: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes report.json, for programs."""
    listed = []
    for outcome in outcomes:
        stated = {"name": outcome.row.name, **asdict(outcome)}
        log = stamp.log_file(output, outcome.row)
        listed.append({**stated, "log": str(log.relative_to(output)) if log.is_file() else None})
    text = json.dumps({"tool": metadata.version("lmsbuild"), "rows": listed}, indent=1)
    files.replace_file(output / stamp.FOLDER / "report.json", f"{text}\n".encode())
