"""``python -m lmsreplay``: records what blocks go through in training, and replays it under every policy."""

from __future__ import annotations

import json
from pathlib import Path

import click

from lmsreplay import trace

try:
    from lmsreplay import plot as plotting
    from lmsreplay import report, stall
    from lmsreplay.record import record as record_model
    from lmsreplay.simulator import CompileError
except ModuleNotFoundError as error:
    raise SystemExit(f"lmsreplay needs {error.name}: install it with `pip install 'lmsbuild[replay]'`") from error

_TRACES = click.argument(
    "traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
_MEMORY = click.option(
    "--memory",
    "fractions",
    multiple=True,
    default=(0.5, 1 / 3),
    show_default="0.5 and 1/3",
    type=click.FloatRange(0, 1, min_open=True),
    help="The limit as a fraction of the peak; may be given several times.",
)


def _settings(traces: tuple[Path, ...], fractions: tuple[float, ...]) -> list[report.Setting]:
    return [report.setting(read, fraction) for read in map(trace.read, traces) for fraction in fractions]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Traces of memory blocks: record them, replay them under every policy, plot them."""


@main.command()
@click.argument("model")
@click.argument("path", type=click.Path(dir_okay=False, writable=True, path_type=Path))
@click.option("--iterations", default=8, show_default=True, type=click.IntRange(min=4), help="Optimiser steps.")
@click.option("--scale", default=1.0, show_default=True, help="Of the model's width.")
@click.option("--min-size", default=1 << 16, show_default=True, help="Bytes; smaller tensors are no blocks.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1), help="For the computation.")
def record(model: str, path: Path, iterations: int, scale: float, min_size: int, threads: int) -> None:
    """Train MODEL (convnet, transformer, lstm or unet3d) with LMS and write the trace to PATH."""
    try:
        record_model(model, path, iterations=iterations, scale=scale, min_size=min_size, threads=threads)
    except (OSError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


@main.command()
@_TRACES
@_MEMORY
@click.option("--stall/--no-stall", default=False, help="Also how long the program waits, by link.")
@click.option("--link", "links", multiple=True, default=stall.LINKS, show_default=True, help="GB/s in each direction.")
@click.option(
    "--speedup",
    default=stall.SPEEDUP,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="How many times faster than the recording machine the device computes.",
)
@click.option(
    "--slices",
    default=stall.SLICES,
    show_default=True,
    type=click.IntRange(1),
    help="Of an iteration, for the ordered bound: more make it tighter, and take longer.",
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Also as JSON."
)
def replay(
    traces: tuple[Path, ...],
    fractions: tuple[float, ...],
    stall: bool,
    links: tuple[float, ...],
    speedup: float,
    slices: int,
    json_path: Path | None,
) -> None:
    """Replay TRACES under a limit: bytes moved per iteration, and with --stall the time that copies cost."""
    try:
        settings = _settings(traces, fractions)
        moved = [report.bytes_report(at) for at in settings]
        click.echo(report.bytes_table(moved))
        each = [(at, link) for at in settings for link in links] if stall else []
        waited = [report.stall_report(at, link, speedup, slices) for at, link in each]
        if waited:
            click.echo("\n" + report.stall_table(waited))
    except (ValueError, CompileError) as error:
        raise click.ClickException(str(error)) from error
    if json_path is not None:
        content = {"bytes": [r.as_json() for r in moved], "stall": [r.as_json() for r in waited]}
        json_path.write_text(json.dumps(content, indent=1) + "\n")


@main.command()
@_TRACES
@_MEMORY
@click.option(
    "--output", default=".", type=click.Path(file_okay=False, path_type=Path), help="Folder for the pictures."
)
def plot(traces: tuple[Path, ...], fractions: tuple[float, ...], output: Path) -> None:
    """Draw what is resident over time under every policy: one PNG for each trace and limit."""
    output.mkdir(parents=True, exist_ok=True)
    try:
        for at in _settings(traces, fractions):
            path = output / f"{at.trace.name}-{at.fraction:.0%}.png".replace("%", "")
            plotting.plot(at, path)
            click.echo(str(path))
    except (ValueError, CompileError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m lmsreplay")
