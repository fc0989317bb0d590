"""Draws a folder of results as one picture, when there is matplotlib: ``python ci/gpu/plot.py results``."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))  # lmsbuild, which need not be installed

import process
import results

from lmsbuild.errors import Failure

_MIB, _GIB = 1 << 20, 1 << 30
_PARTS = ("mapping", "bandwidth", "throughput")


def have_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


def read(folder: Path, simulated: bool) -> dict[str, dict[str, Any]]:
    """The parts in the folder that can be drawn, by name: those with a result."""
    prefix = "simulated-" if simulated else ""
    found = {name: results.read(folder / f"{prefix}{name}.json") for name in _PARTS}
    return {name: part for name, part in found.items() if part and part["results"]}


def draw(folder: Path, simulated: bool) -> Path | None:
    """Writes the picture of what the parts have found so far; None when that is nothing, or there is no matplotlib."""
    parts = read(folder, simulated)
    if not parts or not have_matplotlib():
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(parts), 4.8), layout="constrained")
    panels: Mapping[str, Callable[[Any, dict[str, Any]], None]] = {
        "mapping": _mapping,
        "bandwidth": _bandwidth,
        "throughput": _throughput,
    }
    for index, (name, part) in enumerate(parts.items(), start=1):
        panels[name](figure.add_subplot(1, len(parts), index), part)
    figure.suptitle(title(parts, simulated))
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    path = folder / ("simulated.svg" if simulated else "results.svg")
    results.write_atomically(path, text.getvalue())
    return path


def title(parts: Mapping[str, dict[str, Any]], simulated: bool) -> str:
    """Which device it was; more than one when parts were taken on several."""
    machines = {f"{part['machine'].get('gpu', 'no GPU')}, torch {part['machine']['torch']}" for part in parts.values()}
    return " / ".join(sorted(machines)) + (", SIMULATED: not a measurement" if simulated else "")


def _mapping(axes: Any, part: dict[str, Any]) -> None:
    """Microseconds of mapping and unmapping a range by its size, in chunks of 2 MiB and of 32 MiB, device idle."""
    lines: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in _measurements(part):
        about = row["parameters"]
        if about["load"] is None and about["chunk_bytes"] in (2 * _MIB, 32 * _MIB):
            lines.setdefault((row["name"], about["chunk_bytes"]), []).append((about["bytes"] / _MIB, row["value"]))
    for (name, chunk), points in lines.items():
        style = "-" if chunk == 2 * _MIB else "--"
        axes.plot(*zip(*sorted(points), strict=True), style, marker=".", label=f"{name}, {chunk // _MIB} MiB chunks")
    axes.set(xscale="log", yscale="log", xlabel="range, MiB", ylabel="microseconds", title="changing mappings")
    axes.legend(fontsize="x-small")


def _bandwidth(axes: Any, part: dict[str, Any]) -> None:
    """GB/s by block size."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in _measurements(part):
        lines.setdefault(row["name"], []).append((row["parameters"]["block_bytes"] / _MIB, row["value"]))
    for name, points in lines.items():
        style = ":" if name.startswith("plain_") else "-"
        axes.plot(*zip(*sorted(points), strict=True), style, marker=".", label=name)
    axes.set(xscale="log", xlabel="block, MiB", ylabel="GB/s", title="copies out and in")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small")


def _throughput(axes: Any, part: dict[str, Any]) -> None:
    """Step time against stock: LMS by oversubscription; the peers at the memory that they take."""
    points = []
    peak = 0
    for name, row in part["results"].items():
        ratio, peak = row["step"]["ratio"], row["stock_peak_bytes"]
        if "oversubscription" in row:
            points.append((row["oversubscription"], ratio))
        else:
            axes.plot(peak / row["peak_bytes"], ratio, "s", label=name)
    if points:
        axes.plot(*zip(*sorted(points), strict=True), "-", marker="o", label="LMS")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xlabel="oversubscription", ylabel="step time / stock", title=f"training, {peak / _GIB:.1f} GiB")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small")


def _measurements(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of all units."""
    return [row for entry in part["results"].values() for row in entry["measurements"]]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Draws a folder of results as one picture.")
    parser.add_argument("folder", type=Path, help="with the files of run.py")
    options = parser.parse_args(arguments)
    if not have_matplotlib():
        parser.error("there is no matplotlib: install it")
    try:
        pictures = [drawn for kind in (False, True) if (drawn := draw(options.folder, kind))]
    except Failure as error:
        process.say(f"error: {error}")
        return error.exit_code
    print(*pictures or [f"nothing in {options.folder} can be drawn"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
