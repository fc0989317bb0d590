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
# Bytes of one operand: matrices of 8192 by 8192; more than caches hold.
PRODUCTS, ADDS = f"products:{128 * MIB}", f"adds:{512 * MIB}"
COPIES = f"copies:{2 * MIB}"  # where there are no kernels


def _sizes(simulated: bool) -> dict[str, int]:
    """Bytes by the name of the unit."""
    return {f"{size} MiB": size * MIB for size in (_SIZES_SIMULATED if simulated else _SIZES)}


def units(simulated: bool) -> list[str]:
    return list(_sizes(simulated))


def run(session: Session, part: Part) -> None:
    """Measures with the device idle, and with a stream that keeps it busy all the while."""
    sizes = _sizes(session.simulated)
    for unit in part.each(session.out_of_time):
        part.attempt(unit, partial(_measure, session, sizes[unit]))


def _measure(session: Session, size: int) -> dict[str, Any]:
    rounds, loads = (_ROUNDS_SIMULATED, [COPIES]) if session.simulated else (_ROUNDS, [PRODUCTS, ADDS])
    found: list[Measurement] = []
    answer = session.run("mapping.py", rounds, size, *loads)
    for row in answer["rows"]:
        about = {key: row[key] for key in ("bytes", "chunk_bytes", "load")}
        for name, samples in row["microseconds"].items():
            still = {"still_busy": row["still_busy"][name]} if row["load"] else {}
            found.append(Measurement(name, "us", tuple(samples), about | still))
        total = sum(measurement.value for measurement in found[-len(row["microseconds"]) :])
        beside = f"beside {row['load']}" if row["load"] else "device idle"
        say(f"  {size // MIB} MiB in chunks of {row['chunk_bytes'] // MIB} MiB, {beside}: {total:.0f} us in all")
    return {"measurements": measurements_json(found), **driver_facts(answer)}


def driver_facts(answer: dict[str, Any]) -> dict[str, Any]:
    """What memory was created with, and how many calls of each function answered that they are not ready."""
    return {key: answer[key] for key in ("memory", "calls", "refused")}
