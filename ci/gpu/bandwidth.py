"""The part that measures copies out and in by the pager, against plain copies of the same bytes in the same run."""

from __future__ import annotations

from functools import partial
from typing import Any

from process import say
from results import GB, MIB, Aim, Measurement, Part, measurements_json
from session import Session

AIM = Aim(at_least=0.95)
_BLOCKS = (2, 8, 32, 128, 512)  # MiB
_TOTAL = 4096 * MIB
_ROUNDS = 7
_BLOCKS_SIMULATED = (16,)
_TOTAL_SIMULATED = 64 * MIB
_ROUNDS_SIMULATED = 2


def _blocks(simulated: bool) -> dict[str, int]:
    """Bytes by the name of the unit."""
    return {f"blocks of {size} MiB": size * MIB for size in (_BLOCKS_SIMULATED if simulated else _BLOCKS)}


def units(simulated: bool) -> list[str]:
    return list(_blocks(simulated))


def run(session: Session, part: Part) -> None:
    blocks = _blocks(session.simulated)
    for unit in part.each(session.out_of_time):
        part.attempt(unit, partial(_measure, session, unit, blocks[unit]))


def _measure(session: Session, unit: str, block: int) -> dict[str, Any]:
    total, rounds = (_TOTAL_SIMULATED, _ROUNDS_SIMULATED) if session.simulated else (_TOTAL, _ROUNDS)
    found = measure(session, block, total, rounds)
    for paged in found[1::2]:
        say(f"  {unit}, {paged}")
    return {"measurements": measurements_json(found)}


def measure(session: Session, block: int, total: int, rounds: int) -> list[Measurement]:
    """Plain copies and the pager's out, then both in, of `total` bytes (at scale 1) in blocks of `block` bytes."""
    nbytes = total if session.simulated else int(total * session.scale)
    answer = session.run("bandwidth.py", nbytes, rounds, block)
    parameters = {"block_bytes": block, "bytes": answer["bytes"]}

    def speeds(name: str) -> Measurement:
        return Measurement(
            name, "GB/s", tuple(answer["bytes"] / GB / seconds for seconds in answer["seconds"][name]), parameters
        )

    found: list[Measurement] = []
    for way in ("out", "in"):
        plain = speeds(f"plain_{way}")
        found += [plain, speeds(way).against(plain, None if session.simulated else AIM)]
    return found
