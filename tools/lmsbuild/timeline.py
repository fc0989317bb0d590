"""The picture of a training run's memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MIB = 1 << 20


class Sample(NamedTuple):
    """Memory at one moment."""

    seconds: float  # since the start of training
    allocated: int  # bytes of live blocks
    resident: int  # bytes of blocks with device memory


def draw(picture: Path, samples: Sequence[Sample], limit: int, title: str) -> None:
    """Writes a PNG: live bytes, resident bytes and the limit (bytes) over time."""
    import matplotlib  # here, for loading it takes a second that other commands need not pay

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
    seconds = [sample.seconds for sample in samples]
    axes.fill_between(seconds, [sample.allocated / _MIB for sample in samples], color="#c6d4e8", label="live tensors")
    axes.fill_between(seconds, [sample.resident / _MIB for sample in samples], color="#3b6ea8", label="resident")
    axes.axhline(limit / _MIB, color="#c03a2b", linestyle="--", label="limit")
    axes.set(title=title, xlabel="seconds", ylabel="MiB", xlim=(0, seconds[-1] if seconds else 1))
    axes.margins(y=0.15)
    axes.legend(loc="upper center", ncols=3)
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
