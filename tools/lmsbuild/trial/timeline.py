"""The picture of two training runs' memory over time: one with all the memory that it needs, one within a limit."""

from __future__ import annotations

import bisect
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_MIB = 1 << 20
_POINTS = 320  # of a curve; more are not seen, and make the file larger
_FORMATS = (".png", ".svg")
_SVG: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lms",  # the same names of elements in every picture
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
}


class Sample(NamedTuple):
    """Memory at one moment."""

    seconds: float  # since the start of training
    allocated: int  # bytes of live blocks
    resident: int  # bytes of blocks with device memory


class Run(NamedTuple):
    """What one training run showed."""

    ends: Sequence[float]  # seconds at which each step ended
    samples: Sequence[Sample]


def draw(
    picture: Path,
    without: Run,
    limited: Run,
    limit: int,
    title: str,
    unit: str = "MiB of tensors in memory",
    line: str = "limit",
) -> Path:
    """Writes `picture` with the suffixes .png and .svg, and returns the first.

    Shown are the live bytes of a run `without` a limit, which is what the model needs without Large Model Support, and
    the resident bytes of the `limited` run. `limit` is in bytes. The time is that of the training, in steps, so that the
    two can be compared although paging, or another program, may make one of them slower. `unit` is beside the axis of
    sizes, and `line` names the limit.
    """
    # A user's settings would change the picture, and those that cannot be read would end the tool.
    os.environ.update(MPLBACKEND="Agg", MATPLOTLIBRC=os.devnull)
    import matplotlib  # here, for loading it takes a second that other commands need not pay

    matplotlib.use("Agg")
    from matplotlib import pyplot

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # a font that is not installed is no matter
    with matplotlib.rc_context(_SVG):
        figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
        steps, sizes = _peaks(without, [sample.allocated for sample in without.samples])
        axes.fill_between(steps, sizes, color="#c6d4e8", label="without Large Model Support")
        steps, sizes = _peaks(limited, [sample.resident for sample in limited.samples])
        axes.fill_between(steps, sizes, color="#3b6ea8", label="with it")
        axes.axhline(limit / _MIB, color="#c03a2b", linestyle="--", label=f"{line}: {limit / _MIB:.0f} MiB")
        axes.margins(y=0.2)
        axes.set(title=title, xlabel="training step", ylabel=unit)
        axes.set(xlim=(0, max(1, len(without.ends))), ylim=(0, None))
        axes.legend(loc="upper center", ncols=3)
        for suffix in _FORMATS:
            metadata = {"Date": None} if suffix == ".svg" else None
            figure.savefig(picture.with_suffix(suffix), dpi=120, metadata=metadata)
        pyplot.close(figure)
    return picture.with_suffix(_FORMATS[0])


def _peaks(run: Run, sizes: Sequence[int]) -> tuple[list[float], list[float]]:
    """The steps done at the end of each of `_POINTS` intervals, and the largest of `sizes` (bytes) in it, in MiB."""
    peaks: dict[int, int] = {}
    begins = [0.0, *run.ends]
    for sample, size in zip(run.samples, sizes, strict=True):
        step = min(bisect.bisect(run.ends, sample.seconds), len(run.ends) - 1)
        done = step + min(1.0, (sample.seconds - begins[step]) / (begins[step + 1] - begins[step]))
        point = round(done / len(run.ends) * _POINTS)
        peaks[point] = max(size, peaks.get(point, 0))
    points = sorted(peaks)
    return [point * len(run.ends) / _POINTS for point in points], [peaks[point] / _MIB for point in points]
