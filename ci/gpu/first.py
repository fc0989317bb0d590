"""The part that comes first: in about two minutes, is LMS correct on this device, and what do calls and copies cost?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import bandwidth
import correctness
import mapping
from process import say
from results import MIB, Measurement, Part, measurements_json
from session import Session

CORRECT, CALLS, COPIES = "correct", "calls", "copies"
_MODEL, _LIMIT = "transformer", (2, "iteration")
_HANDLES = (2 * MIB, 64 * MIB)
_CHANGED, _CHANGED_SIMULATED = 1024 * MIB, 128 * MIB  # of handles of each size, in a round
_LAUNCH, _LAUNCH_SIMULATED = f"adds:{MIB // 16}", f"copies:{MIB // 16}"
_ROUNDS, _ROUNDS_SIMULATED = 9, 2
_BLOCKS = (8 * MIB, 16 * MIB, 64 * MIB)
_COPIED, _COPIED_SIMULATED = 2048 * MIB, 64 * MIB
_COPY_ROUNDS, _COPY_ROUNDS_SIMULATED = 3, 1


def units(simulated: bool) -> list[str]:
    return list(_WORK)


def run(session: Session, part: Part) -> None:
    for unit in part.each(session.out_of_time):
        part.attempt(unit, lambda unit=unit: _WORK[unit](session))  # type: ignore[misc]
    for line in summary(part.results):
        say(f"  {line}")


def _correct(session: Session) -> dict[str, Any]:
    checks = correctness.contents(session, [_LIMIT[0]])
    if not session.simulated:
        checks += correctness.training(session, _MODEL, [_LIMIT])
    return correctness.all_passed(checks)


def _calls(session: Session) -> dict[str, Any]:
    words: Sequence[object] = (_ROUNDS, _CHANGED, mapping.PRODUCTS, _LAUNCH)
    if session.simulated:
        words = (_ROUNDS_SIMULATED, _CHANGED_SIMULATED, mapping.COPIES, _LAUNCH_SIMULATED)
    answer = session.run("calls.py", *words, *_HANDLES)
    found = [each for row in answer["rows"] for each in _measurements(row)]
    return {"measurements": measurements_json(found), **mapping.driver_facts(answer)}


def _measurements(row: Mapping[str, Any]) -> list[Measurement]:
    """Medians of calls and launches; each has the longest of all rounds among its parameters."""

    def measurement(name: str, situation: str, samples: Mapping[str, list[float]]) -> Measurement:
        about: dict[str, Any] = {"handle_bytes": row["handle_bytes"], "situation": situation}
        about |= {"still_busy": row["still_busy"]} if situation == "busy" else {}
        return Measurement(name, "us", tuple(samples["median"]), about | {"longest": max(samples["longest"])})

    calls = [
        measurement(name, situation, samples)
        for situation, steps in row["calls"].items()
        for name, samples in steps.items()
    ]
    return calls + [measurement("launch", situation, samples) for situation, samples in row["launch"].items()]


def _copies(session: Session) -> dict[str, Any]:
    total, rounds = (_COPIED_SIMULATED, _COPY_ROUNDS_SIMULATED) if session.simulated else (_COPIED, _COPY_ROUNDS)
    found = [each for block in _BLOCKS for each in bandwidth.measure(session, block, total, rounds)]
    return {"measurements": measurements_json(found)}


_WORK: dict[str, Callable[[Session], dict[str, Any]]] = {CORRECT: _correct, CALLS: _calls, COPIES: _copies}


def summary(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was found so far, in a few lines."""
    lines = []
    if CORRECT in results:
        checks = results[CORRECT]["checks"]
        names = ", ".join(f"{each['case']} at {each['oversubscription']:g}x" for each in checks)
        lines.append(f"equal to the bit: {names}")
    if CALLS in results:
        lines += _summary_of_calls(results[CALLS])
    if COPIES in results:
        for row in results[COPIES]["measurements"]:
            if "ratio" in row:
                block = row["parameters"]["block_bytes"] // MIB
                lines.append(f"{block} MiB {row['name']}: {row['value']:.3g} GB/s, {row['ratio']:.3f} of a plain copy")
    return lines


def _summary_of_calls(found: Mapping[str, Any]) -> list[str]:
    rows: dict[int, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for row in found["measurements"]:
        about = row["parameters"]
        rows.setdefault(about["handle_bytes"], {})[row["name"], about["situation"]] = row
    lines = [
        "microseconds a call: device idle / busy / from another thread (such a thread without the driver) / from two at once"
    ]
    for size, own in rows.items():
        names = list(dict.fromkeys(name for name, _ in own if name != "launch"))
        texts = []
        for name in names:
            idle, busy, thread, control, both = (
                own[name, each]["value"] for each in ("idle", "busy", "thread", "control", "both")
            )
            texts.append(f"{name} {idle:.1f} / {busy:.1f} / {thread:.1f} ({control:.1f}) / {both:.1f}")
        lines.append(f"  {size // MIB} MiB: {', '.join(texts)}")
        alone, control, changes = (own["launch", each] for each in ("alone", "control", "changes"))
        lines.append(
            f"  a launch: alone {alone['value']:.1f}, while another thread changes mappings {changes['value']:.1f} "
            f"(is busy without the driver {control['value']:.1f}); the longest {alone['parameters']['longest']:.0f}, "
            f"{changes['parameters']['longest']:.0f} ({control['parameters']['longest']:.0f})"
        )
    calls, refused = sum(found["calls"].values()), found["refused"]
    told = ", ".join(f"{name} {count} times" for name, count in refused.items()) if refused else "never"
    lines.append(f"  refused for a moment, in {calls} calls: {told}")
    return lines
