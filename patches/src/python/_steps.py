"""What LMS did in each training step, for the loggers of training libraries: see the callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _arguments, _library

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._kind import Device

#: What moved, how long the program waited for it, the most that was resident, and by how much the limit was passed at most:
#: where that is not 0 the step needed the limit and that much more.
STATISTICS = ("in.bytes", "out.bytes", "stall_ns", "resident_bytes.peak", "over_limit_bytes.peak")


def counts(name: str) -> bool:
    """Whether a statistic rises with everything that happens; the others say how things stand, or a peak."""
    return not name.endswith((".current", ".peak")) and name != "limit_bytes"


class Steps:
    """Statistics of one step after the other, of every device for which LMS is enabled. Use from one thread.

    :param statistics: names of statistics, as :func:`stats` has them.
    :raises ValueError: there is no such statistic.
    """

    def __init__(self, statistics: Iterable[str] = STATISTICS) -> None:
        self._names = tuple(statistics)
        known = _library.statistic_names()
        for name in self._names:
            if name not in known:
                meant = _arguments.did_you_mean(name, known)
                raise ValueError(f"statistics: {name!r} is none; docs/statistics.md has all of them{meant}")
        self._before: dict[Device, dict[str, int]] = {}
        self.end()

    def end(self) -> dict[str, int]:
        """Ends a step. Statistics that count are what the step added, peaks those within the step, and others as they are.

        The names are "lms/DEVICE/STATISTIC", such as "lms/cpu/out.bytes"; sizes are in bytes, times in nanoseconds. The
        peaks of the device are reset, for the process.
        """
        found = {}
        for device in filter(_library.enabled, _library.devices()):
            now, before = _library.statistics(device), self._before.get(device, {})
            label = str(device).replace(":", "_")  # which loggers allow in names
            for name in self._names:
                found[f"lms/{label}/{name}"] = now[name] - (before.get(name, 0) if counts(name) else 0)
            self._before[device] = now
            _library.reset_peaks(device)
        return found
