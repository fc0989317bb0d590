"""The part that measures what changing mappings costs: create, map, set access, unmap, release, by size and chunk."""

from __future__ import annotations

from functools import partial
from typing import Any

from process import say
from results import MIB, Measurement, Part, measurements_json
from session import Session

_ROUNDS = 9
_ROUNDS_SIMULATED = 2
_SIZES = (2, 8, 32, 128, 512, 1024)  # MiB
_SIZES_SIMULATED = (2, 32)
_LOAD = 512 * MIB  # of one copy of the load
_LOAD_SIMULATED = 2 * MIB


def _sizes(simulated: bool) -> dict[str, int]:
    """Bytes by the name of the unit."""
    return {f"{size} MiB": size * MIB for size in (_SIZES_SIMULATED if simulated else _SIZES)}


def units(simulated: bool) -> list[str]:
    return list(_sizes(simulated))


def run(session: Session, part: Part) -> None:
    """Measures with the device idle, and with a stream copying all the while."""
    sizes = _sizes(session.simulated)
    for unit in part.each(session.out_of_time):
        part.attempt(unit, partial(_measure, session, sizes[unit]))


def _measure(session: Session, size: int) -> dict[str, Any]:
    rounds, load = (_ROUNDS_SIMULATED, _LOAD_SIMULATED) if session.simulated else (_ROUNDS, _LOAD)
    found: list[Measurement] = []
    for row in session.run("mapping.py", rounds, size, load)["rows"]:
        about = {key: row[key] for key in ("bytes", "chunk_bytes", "device_busy")}
        for name, samples in row["microseconds"].items():
            still = {"still_busy": row["still_busy"][name]} if row["device_busy"] else {}
            found.append(Measurement(name, "us", tuple(samples), about | still))
        total = sum(measurement.value for measurement in found[-len(row["microseconds"]) :])
        busy = "busy" if row["device_busy"] else "idle"
        say(f"  {size // MIB} MiB in chunks of {row['chunk_bytes'] // MIB} MiB, device {busy}: {total:.0f} us in all")
    return {"measurements": measurements_json(found)}
