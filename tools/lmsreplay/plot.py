"""Memory over time, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lmsreplay.report import MIB, Setting, replays


def plot(at: Setting, path: Path) -> None:
    """Draws what is resident under every policy, and what lives, during the steady iteration.

    :param path: the PNG to write.
    """
    from matplotlib.figure import Figure

    first, stop = at.trace.iterations[at.iteration], at.trace.iterations[at.iteration + 1]
    results = replays(at)
    figure = Figure(figsize=(9, 2.2 * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    when = np.arange(stop - first)
    live = at.trace.live_bytes()[first:stop] / MIB
    for axis, (name, result) in zip(axes, results.items(), strict=True):
        moved = (result.bytes_in[at.iteration] + result.bytes_out[at.iteration]) / MIB
        axis.fill_between(when, live, color="0.85", label="live")
        axis.plot(when, result.occupied[first:stop] / MIB, linewidth=0.9, label="resident")
        axis.axhline(at.limit / MIB, color="tab:red", linewidth=0.8, linestyle="--", label="limit")
        axis.set_title(f"{name}: {moved:.0f} MiB moved", fontsize="medium")
        axis.set_ylabel("MiB")
    axes[0].legend(loc="upper right", fontsize="small")
    axes[-1].set_xlabel(f"events of iteration {at.iteration + 1}")
    figure.suptitle(f"{at.trace.name} at {at.fraction:.0%} of its peak")
    figure.savefig(path, dpi=120)
