"""Policies and schedules on synthetic traces: what they move, against what must be moved."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import synthetic_traces
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmsreplay import bound, gaps, offline, report, simulator, stall
from lmsreplay.__main__ import main
from lmsreplay.trace import ALLOCATE, FREE, MARKER_BYTES, READ, WRITE, Trace, TraceError, read

SEEDS = (1, 2, 3)
SAMPLE = [pytest.param(seed, marks=pytest.mark.release if seed != SEEDS[0] else ()) for seed in SEEDS]
FRACTIONS = (0.5, 1 / 3)


def any_program(test: Callable[..., None]) -> Callable[..., None]:
    """Runs the test on large programs, and on small ones of any sizes and limits."""
    drawn = given(source=st.randoms(use_true_random=False), layers=st.integers(2, 8), fraction=st.floats(1 / 3, 0.6))
    test = settings(max_examples=10)(drawn(test))
    for seed, fraction in zip(SEEDS, itertools.cycle(FRACTIONS)):
        test = example(source=seed, layers=32, fraction=fraction)(test)
    return test


def _limit(trace: Trace, fraction: float) -> int:
    return max(int(int(trace.live_bytes().max()) * fraction), gaps.working_set(trace))


def _moved(result: simulator.Result) -> np.ndarray:
    return result.bytes_in + result.bytes_out


@any_program
def test_no_schedule_undercuts_the_lower_bound(source: random.Random | int, layers: int, fraction: float) -> None:
    at = report.setting(synthetic_traces.train(source, 7, layers=layers), fraction)
    told = report.bytes_report(at)
    assert told.lower_bound > 0
    for name, moved in told.moved.items():
        assert moved.mean >= 0.999 * told.lower_bound, name
        assert moved.over_limit == 0, name
    best = told.moved["best"]
    assert best.mean <= 1.001 * min(moved.mean for moved in told.moved.values())


@any_program
def test_a_schedule_moves_in_the_replay_what_it_claims(
    source: random.Random | int, layers: int, fraction: float
) -> None:
    at = report.setting(synthetic_traces.train(source, 7, layers=layers), fraction)
    evicted = offline.best_schedule(at.gaps, at.limit)
    assert at.gaps.resident(evicted).max() <= at.limit
    flags = offline.evictions(at.trace, at.gaps, evicted)
    replayed = simulator.replay(at.trace, "offline", at.limit, evict=flags)
    bytes_in, bytes_out = at.gaps.cost(evicted)
    assert replayed.bytes_in[at.iteration] == pytest.approx(bytes_in, rel=0.01)
    assert replayed.bytes_out[at.iteration] == pytest.approx(bytes_out, rel=0.01)


@pytest.mark.parametrize("seed", SAMPLE)
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_iteration_is_close_to_the_best_schedule_from_the_third_iteration_on(seed: int, fraction: float) -> None:
    at = report.setting(synthetic_traces.train(seed, 7), fraction)
    best = sum(at.gaps.cost(offline.best_schedule(at.gaps, at.limit)))
    moved = _moved(simulator.replay(at.trace, "iteration", at.limit))
    assert (moved[2:-1] <= 1.05 * best).all(), (moved / best).round(3)
    least_recent = _moved(simulator.replay(at.trace, "lru", at.limit))
    assert least_recent[2:-1].mean() > 1.1 * moved[2:-1].mean()


def test_an_evaluation_is_a_departure_and_costs_no_more_than_itself() -> None:
    def between(program: synthetic_traces.Program, iteration: int) -> None:
        if iteration == 6:
            program.evaluate()

    plain = synthetic_traces.train(1, 12)
    trace = synthetic_traces.train(1, 12, between)
    limit = _limit(plain, 0.5)
    undisturbed = simulator.replay(plain, "iteration", limit)
    result = simulator.replay(trace, "iteration", limit)
    assert result.departures > undisturbed.departures
    assert result.wrong == 0
    steady = _moved(undisturbed)[5]
    # Iteration 6 of the trace is the evaluation, 7 the training after it.
    assert (_moved(result)[8:-1] <= 1.02 * steady).all()
    assert _moved(result)[7] <= 1.5 * steady


@pytest.mark.parametrize("extra", [1, 5])
def test_a_small_insertion_is_forgiven_at_once(extra: int) -> None:
    def between(program: synthetic_traces.Program, iteration: int) -> None:
        if iteration in (6, 8):
            for _ in range(extra):
                program.operation([program.weights[0]], [], [])

    trace = synthetic_traces.train(2, 12, between)
    limit = _limit(trace, 0.5)
    result = simulator.replay(trace, "iteration", limit)
    plain = simulator.replay(synthetic_traces.train(2, 12), "iteration", limit)
    assert result.departures > plain.departures
    assert result.foreseen >= plain.foreseen - 60
    assert _moved(result)[5:-1].mean() <= 1.05 * _moved(plain)[5:-1].mean()


def test_a_program_that_changes_for_good_is_learned_again() -> None:
    program = synthetic_traces.Program(random.Random(3))
    for _ in range(4):
        program.train()
    program.activation_sizes = [size + 3 for size in program.activation_sizes]
    for _ in range(5):
        program.train()
    trace = program.trace()
    limit = _limit(trace, 0.5)
    at = gaps.steady_gaps(trace, 7)
    best = sum(at.cost(offline.best_schedule(at, limit)))
    moved = _moved(simulator.replay(trace, "iteration", limit))
    assert (moved[6:-1] <= 1.05 * best).all()


@pytest.mark.parametrize("seed", SAMPLE)
def test_an_order_that_never_is_the_same_costs_no_more_than_itself(seed: int) -> None:
    """As in TensorFlow, which runs what is ready in an order that depends on how long it took before."""
    trace = synthetic_traces.train_recurrent(seed, 40)
    result = simulator.replay(trace, "iteration", _limit(trace, 0.5))
    uses = int(np.isin(trace.kind, (ALLOCATE, READ, WRITE, FREE)).sum())
    assert result.departures > 100
    assert result.foreseen > 0.9 * uses
    moved = _moved(result)
    assert moved[2:].max() <= 1.02 * moved[2]


@pytest.mark.parametrize("seed", SAMPLE)
def test_looking_ahead_moves_the_same_bytes_and_waits_less(seed: int) -> None:
    at = report.setting(synthetic_traces.train(seed, 8), 0.5)
    seconds = stall.compute_seconds(at.trace, 1.0, at.iteration)
    steady = float(seconds[at.trace.iteration_of() == at.iteration].sum())
    best = sum(at.gaps.cost(offline.best_schedule(at.gaps, at.limit)))
    waited = report.stall_report(at, best / steady / 1e9, 1.0)  # as much copying as computation
    assert waited.bytes_in + waited.bytes_out <= 1.05 * best
    assert waited.ahead < 0.9 * waited.on_demand
    assert waited.ahead >= waited.ordered_bound * 0.999
    assert waited.ordered_bound >= waited.compute * 0.999
    fewer = report.stall_report(at, waited.link, 1.0, stall.SLICES // 4)  # whose edges are edges of the others, too
    assert fewer.ordered_bound <= waited.ordered_bound * 1.001


def test_working_set_is_the_smallest_limit_that_fits() -> None:
    trace = synthetic_traces.train(1, 5)
    largest = gaps.working_set(trace)
    assert simulator.replay(trace, "lru", largest).over == 0
    assert simulator.replay(trace, "lru", largest - 1).over > 0


def test_nothing_moves_when_memory_suffices() -> None:
    trace = synthetic_traces.train(1, 5)
    peak = int(trace.live_bytes().max())
    for policy in (*simulator.policies(), "offline"):
        result = simulator.replay(trace, policy, peak, ahead=True)
        assert _moved(result).sum() == 0
        assert result.most == peak


def test_the_bound_is_the_optimum_of_a_case_done_by_hand() -> None:
    # One block of 3 pages is away while two of 4 pages each are made and freed under a limit of 10 pages.
    page = 4096
    table = gaps.Gaps(
        last=np.array([0, 1]),
        begin=np.array([1, 2]),
        end=np.array([5, 4]),
        nbytes=np.array([3 * page, 4 * page]),
        read=np.array([True, False]),
        version=np.array([0, 1]),
        written=np.array([3 * page, 4 * page]),
        made=np.array([0, 1]),
        live=np.array([3, 7, 11, 11, 7, 3]) * page,
    )
    # One page has to go: a third of the first block out and in costs 2 pages, a quarter of the second costs 1 page out.
    assert bound.lower_bound(table, 10 * page) == pytest.approx(1 * page)
    # Whole blocks: 3 pages out and in cost 6, the second block 4.
    assert table.cost(offline.best_schedule(table, 10 * page)) == (0, 4 * page)


def _write(trace: Trace, path: Path) -> None:
    """The trace as text, as lms_trace_start and `record` write it."""
    with path.open("w") as out:
        starts = trace.iterations[:-1].tolist()
        for i, (kind, block, nbytes) in enumerate(zip(trace.kind, trace.block, trace.nbytes, strict=True)):
            if i in starts:
                out.write(f"a {i} 0 {10**6 + i} {MARKER_BYTES}\nf {i} 0 {10**6 + i}\n")
            operand = f" {block}" if block >= 0 else ""
            size = f" {nbytes}" if kind == ALLOCATE else ""
            out.write(f"{'bearwf'[kind]} {i * 1000} 0{operand}{size}\n")


def test_the_command_line_replays_and_plots_a_file(tmp_path: Path) -> None:
    trace = synthetic_traces.train(1, 6)
    path = tmp_path / "small.trace"
    _write(trace, path)
    parsed = read(path)
    assert (parsed.kind == trace.kind).all()
    assert (parsed.nbytes == trace.nbytes).all()
    assert (parsed.iterations == trace.iterations).all()
    runner = CliRunner()
    done = runner.invoke(
        main, ["replay", str(path), "--memory", "0.5", "--stall", "--json", str(tmp_path / "out.json")]
    )
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "out.json").read_text())
    assert len(content["bytes"]) == 1
    assert len(content["stall"]) == len(stall.LINKS)
    assert set(content["bytes"][0]["moved"]) == set(report.policies())
    done = runner.invoke(main, ["plot", str(path), "--memory", "0.5", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "small-50.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x 1 0\n", "small.trace:1"),
        ("a 1 0 5 4096\nr 2 0 6\n", "small.trace:2"),
        ("a 1 0 5\n", "small.trace:1"),
        ("a 1 0 5 4096\n", "no iteration is marked"),
    ],
)
def test_a_bad_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "small.trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read(path)
    done = CliRunner().invoke(main, ["replay", str(path)])
    assert done.exit_code == 1
    assert message in done.output
