"""The part that compares: training under a limit against training without one, to the bit, and contents under a limit.

Each run is a process of its own. The stock run is made twice: where it does not agree with itself, there is nothing to
compare with, and that is said instead. LMS without need comes first, which also measures what the model needs; then the
limits that follow from it. A run under such a limit that moved nothing proves nothing, so that fails too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oversubscription import limit_for
from process import say
from results import MIB, Part
from session import Session

from lmsbuild.errors import ProgramFailed, WrongResult

MODELS = ("convnet", "transformer", "lstm", "unet3d")
SHAPES = ("odd", "resnet")
FEATURES = ("wide", "compiled", "amp", "streams", "graphs")
CONTENTS = "contents"
CASES = (CONTENTS, *MODELS, *SHAPES, *FEATURES)
FACTORS = (2, 4)
LIMITS = (*((factor, "iteration") for factor in FACTORS), (FACTORS[0], "lru"))  # of training, and under which policy
_STEPS = 6
_SCALE = 4.0  # of the models: at 1 their tensors are smaller than a device's pages
_LIMIT = 512 * MIB  # of the tensors whose contents are compared
_LIMIT_SIMULATED = 64 * MIB
_EQUAL = "equal"
_NOTHING_MOVED = "nothing was paged out and in, so nothing was compared"


@dataclass(frozen=True)
class Check:
    """One comparison, and how it ended: "equal", or what is wrong."""

    case: str
    factor: float
    policy: str
    outcome: str
    facts: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        return self.outcome == _EQUAL

    def as_json(self) -> dict[str, Any]:
        head = {"case": self.case, "oversubscription": self.factor, "policy": self.policy, "outcome": self.outcome}
        return head | dict(self.facts)

    def __str__(self) -> str:
        return f"{self.case} at {self.factor:g}x, {self.policy}: {self.outcome}"


def units(simulated: bool) -> list[str]:
    return [CONTENTS] if simulated else list(CASES)


def run(session: Session, part: Part, cases: Sequence[str]) -> None:
    """Runs the cases that were asked for."""
    able = units(session.simulated)
    needs_gpu = [case for case in cases if case not in able]
    for case in part.each(session.out_of_time, [case for case in cases if case in able]):
        part.attempt(case, partial(_compare, session, case))
    if needs_gpu:
        say(f"  need a GPU: {', '.join(needs_gpu)}")


def _compare(session: Session, case: str) -> dict[str, Any]:
    return all_passed(contents(session) if case == CONTENTS else training(session, case))


def all_passed(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as they stand in the results. Raises WrongResult with all of them when one fails."""
    for check in checks:
        say(f"  {check}")
    found = {"checks": [each.as_json() for each in checks]}
    failed = [check for check in checks if not check.passed]
    if failed:
        raise WrongResult(f"{len(failed)} of {len(checks)} checks failed", found)
    return found


def contents(session: Session, factors: Sequence[float] = FACTORS) -> list[Check]:
    """Every byte of tensors that take `factors` times the limit."""
    limit, operations = (_LIMIT_SIMULATED, 100) if session.simulated else (_LIMIT, 600)
    runs = [("contents.py", limit, factor, operations, factor) for factor in factors]
    checks = []
    for factor, found in zip(factors, session.run_all(runs), strict=True):
        facts: dict[str, Any] = {"limit_bytes": limit, "operations": operations, "seed": factor}
        if isinstance(found, ProgramFailed):
            checks.append(Check(CONTENTS, factor, "iteration", str(found), facts))
            continue
        moved = found["statistics"]
        outcome = _EQUAL
        if found["wrong"]:
            outcome = f"contents differ after operations {found['wrong'][:8]}"
        elif nothing_moved(moved):
            outcome = _NOTHING_MOVED
        facts |= {"tensor_bytes": found["tensor_bytes"], **_facts(moved)}
        checks.append(Check(CONTENTS, factor, "iteration", outcome, facts))
    return checks


def training(session: Session, case: str, limits: Sequence[tuple[float, str]] = LIMITS) -> list[Check]:
    """Training at 1x, and oversubscribed by each factor in `limits`, against training without LMS."""
    scale = _SCALE * session.scale if case in MODELS else session.scale
    arguments = ("train_case.py", case, _STEPS, scale, session.models)
    first = session.run_all([arguments, arguments, (*arguments, 0)])
    for answer, policy in zip(first, ("stock", "stock", "iteration"), strict=True):
        if isinstance(answer, ProgramFailed):
            return [Check(case, 1, policy, str(answer), {})]
    stock, again, roomy = (answer for answer in first if isinstance(answer, dict))
    if stock["undeterministic"]:
        return [Check(case, 1, "stock", "PyTorch says it is not deterministic", {"said": stock["undeterministic"]})]
    if not same(stock, again):
        return [Check(case, 1, "stock", "two runs without LMS differ, so there is nothing to compare with", {})]
    need = roomy["statistics"]["allocated_bytes.peak"]
    facts: dict[str, Any] = {"need_bytes": need, "steps": _STEPS}
    checks = [_check(case, 1, "iteration", stock, roomy, facts)]
    runs = [(*arguments, limit_for(need, factor), policy) for factor, policy in limits]
    for (factor, policy), run, managed in zip(limits, runs, session.run_all(runs), strict=True):
        checks.append(_check(case, factor, policy, stock, managed, facts | {"limit_bytes": run[-2]}))
    return checks


def _check(
    case: str,
    factor: float,
    policy: str,
    stock: Mapping[str, Any],
    managed: dict[str, Any] | ProgramFailed,
    facts: dict[str, Any],
) -> Check:
    if isinstance(managed, ProgramFailed):
        return Check(case, factor, policy, str(managed), facts)
    outcome = outcome_of(stock, managed, must_move=factor > 1)
    return Check(case, factor, policy, outcome, facts | _facts(managed["statistics"]))


def nothing_moved(statistics: Mapping[str, int]) -> bool:
    return not statistics["out.bytes"] or not statistics["in.bytes"]


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two trainings had the same losses, and the same parameters and gradients at the end, to the bit."""
    return bool(one["losses"] == other["losses"] and one["digest"] == other["digest"])


def outcome_of(stock: Mapping[str, Any], managed: Mapping[str, Any], must_move: bool = True) -> str:
    """What comparing a training with LMS with the stock one says."""
    pairs = zip(stock["losses"], managed["losses"], strict=True)
    different = [step for step, (one, other) in enumerate(pairs, start=1) if one != other]
    if different:
        return f"losses differ from step {different[0]} on"
    if stock["digest"] != managed["digest"]:
        return "parameters or gradients differ"
    return _NOTHING_MOVED if must_move and nothing_moved(managed["statistics"]) else _EQUAL


def _facts(statistics: Mapping[str, int]) -> dict[str, int]:
    return {
        "out_bytes": statistics["out.bytes"],
        "in_bytes": statistics["in.bytes"],
        "device_bytes_peak": statistics["device_bytes.peak"],
        "over_limit_bytes_peak": statistics["over_limit_bytes.peak"],
    }
