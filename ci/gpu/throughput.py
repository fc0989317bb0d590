"""The part that measures training speed: LMS by oversubscription, and its peers, each against the stock allocator.

For every contender two processes live, it and one without LMS, and take turns of a few steps, so that whatever else the
machine does meets both alike. Who goes first alternates. The model is the same everywhere: what differs is how
little device memory a contender gets by with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import predicted
from oversubscription import Traffic, limit_for
from process import Conversation, say
from results import MIB, Aim, Measurement, Part
from session import Session

from lmsbuild.errors import ProgramFailed, WrongResult

FACTORS = (1.0, 1.5, 2.0, 4.0)
PEERS = ("save_on_cpu", "checkpoint")
AIM_AT_1 = Aim(at_most=1.02)
AIM_AGAINST_PEERS = Aim(at_most=1.0)
_AGAINST_PEERS = (1.5, 2.0)
_WARM_UP = 6  # steps: both allocators' caches fill, and the policy learns the iteration twice over
_STEPS = 3  # in a turn
_TURNS = 7
_LINK = 1024 * MIB
_PATIENCE = 600.0  # seconds for one answer


@dataclass(frozen=True)
class Shape:
    """The transformer: few wide layers, whose computing per byte is that of large models."""

    width: int = 4096
    layers: int = 4
    heads: int = 32
    length: int = 2048
    batch: int = 8
    vocabulary: int = 16384

    def scaled(self, scale: float) -> Shape:
        """The same layers with a smaller or larger batch, and narrower ones where no batch is left to take from."""
        batch = max(1, round(self.batch * scale))
        if self.batch * scale >= 1:
            return replace(self, batch=batch)
        heads = max(1, round(self.heads * self.batch * scale))
        return replace(self, batch=1, heads=heads, width=self.width // self.heads * heads)

    def words(self) -> list[int]:
        return [self.width, self.layers, self.heads, self.length, self.batch, self.vocabulary]


@dataclass(frozen=True)
class Contender:
    """One way to train; `factor` is the oversubscription, for LMS alone."""

    mode: str
    factor: float | None = None

    @property
    def name(self) -> str:
        return f"lms {self.factor:g}x" if self.factor is not None else self.mode

    def words(self, peak: int) -> str:
        """As side.py takes it; `peak` is what the stock run needs, in bytes."""
        if self.factor is None:
            return self.mode
        return f"{self.mode}:{limit_for(peak, self.factor) if self.factor > 1 else 0}"


CONTENDERS = {each.name: each for each in (*(Contender("lms", f) for f in FACTORS), *map(Contender, PEERS))}


def units(simulated: bool) -> list[str]:
    return [] if simulated else list(CONTENDERS)


def run(session: Session, part: Part) -> None:
    shape = Shape().scaled(session.scale)
    part.set("model", {**shape.__dict__, "precision": "bfloat16 autocast", "optimizer": "AdamW"})
    with ExitStack() as stack:
        stock: Stock | None = None
        for name in part.each(session.out_of_time):
            if stock is None:
                stock = Stock(session, shape, stack.enter_context(session.talk("side.py", "stock", *shape.words())))
            now = time.monotonic()
            share = now + (session.deadline - now) / len(part.left())
            part.attempt(name, partial(stock.duel, CONTENDERS[name], share))
            part.set("against_peers", [each.as_json() for each in against_peers(part.results)])
    for each in against_peers(part.results):
        say(f"  {each}")


class Stock:
    """The stock side, what it needs and how fast its link is, and the duels of others with it."""

    def __init__(self, session: Session, shape: Shape, side: Conversation) -> None:
        self._session = session
        self._shape = shape
        self._side = side
        side.answer(_PATIENCE)
        self._peak = int(side.ask(f"steps {_WARM_UP}", _PATIENCE)["peak"])
        self._link = side.ask(f"link {_LINK}", _PATIENCE)
        say(
            f"  stock: {self._peak / 1e9:.1f} GB, link {self._link['out'] / 1e9:.1f} out, {self._link['in'] / 1e9:.1f} in"
        )

    def duel(self, contender: Contender, until: float) -> dict[str, Any]:
        """Turns of both, at least three of each, until `until` (time.monotonic())."""
        try:
            return self._duel(contender, until)
        except ProgramFailed as error:
            raise WrongResult(f"did not train to the end: {error}") from None

    def _duel(self, contender: Contender, until: float) -> dict[str, Any]:
        seconds: dict[Conversation, list[float]] = {}
        with self._session.talk("side.py", contender.words(self._peak), *self._shape.words()) as other:
            other.answer(_PATIENCE)
            first = last = other.ask(f"steps {_WARM_UP}", _PATIENCE)
            for turn in range(_TURNS):
                if turn >= 3 and time.monotonic() >= until:
                    break
                for who in (self._side, other) if turn % 2 else (other, self._side):
                    said = who.ask(f"steps {_STEPS}", _PATIENCE)
                    seconds.setdefault(who, []).append(said["seconds"])
                    last = said if who is other else last
        plain = Measurement("stock", "s/step", tuple(seconds[self._side]))
        aim = AIM_AT_1 if contender.factor == 1 else None
        own = Measurement(contender.name, "s/step", tuple(seconds[other])).against(plain, aim)
        say(f"  {own}")
        expected = predicted.ratio(self._session.gpu, contender.name) if self._session.scale == 1 else None
        if expected is not None:
            say(f"    predicted: {expected:.3f} of stock; measured is {own.ratio / expected:.3f} of that")
        facts: dict[str, Any] = {"predicted_ratio": expected, "loss": last["loss"], "stock_peak_bytes": self._peak}
        if contender.factor is None:
            fits = [factor for factor in FACTORS if last["peak"] <= self._peak / factor]
            facts |= {"peak_bytes": last["peak"], "fits_at": fits}
        else:
            steps = _STEPS * len(own.samples)
            added = own.value - plain.value
            facts |= {"oversubscription": contender.factor, "link_bytes_per_second": self._link}
            facts |= traffic(first["statistics"], last["statistics"], steps, self._link, added)
        return {"step": own.as_json(), "stock": plain.as_json(), **facts}


def traffic(
    before: dict[str, int], after: dict[str, int], steps: int, link: dict[str, float], added: float
) -> dict[str, Any]:
    """What a step moved, how long that takes at the link's speed, and how much of it did not make the step longer."""
    moved = Traffic(
        (after["out.bytes"] - before["out.bytes"]) / steps,
        (after["in.bytes"] - before["in.bytes"]) / steps,
        link["out"],
        link["in"],
    )
    return {
        "limit_bytes": after["limit_bytes"],
        "device_bytes_peak": after["device_bytes.peak"],
        "over_limit_bytes_peak": after["over_limit_bytes.peak"],
        "out_bytes_per_step": moved.out_bytes,
        "in_bytes_per_step": moved.in_bytes,
        "copy_seconds_per_step": {
            "one_after_the_other": moved.serial_seconds,
            "both_ways_at_once": moved.duplex_seconds,
        },
        "added_seconds_per_step": added,
        "hidden_share": moved.hidden_share(added),
        "stall_seconds_per_step": (after["stall_ns"] - before["stall_ns"]) / steps / 1e9,
        "faults_per_step": (after["faults"] - before["faults"]) / steps,
    }


def against_peers(results: Mapping[str, Mapping[str, Any]]) -> list[Measurement]:
    """LMS against each peer, by the ratio of each to the stock run that took turns with it.

    A peer has no limit: it takes the memory that it takes, and `fits_at` in its results says where that would do.
    """
    found = []
    relative = {
        name: Measurement(name, "of stock", (results[name]["step"]["ratio"],)) for name in CONTENDERS if name in results
    }
    for factor in _AGAINST_PEERS:
        own = relative.get(Contender("lms", factor).name)
        found += [own.against(relative[peer], AIM_AGAINST_PEERS) for peer in PEERS if own and peer in relative]
    return found
