"""Published policies played with tapes (predictions/replay.py, literature.py): small tapes whose schedules can be worked out."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from predictions.literature import POLICIES
from predictions.replay import DoesNotFit, Link, Outcome, Policy, Replay
from predictions.tape import Tape, read

MB = 1_000_000
MS = 1e-3
LINK = Link(1e9, 1e9, 0.0)  # a MB takes a millisecond
STEPS = 8
MEASURED = 4
UNAWARE = {"vDNN"}  # moves the same whatever memory there is


def kernel(milliseconds: float, name: str, *operands: str) -> str:
    return f"kernel {int(milliseconds * 1e6)} {name} {' '.join(operands)}"


def in_turn() -> Tape:
    """Three tensors of 4 MB, of which every kernel reads one, for a millisecond."""
    lines = [f"alloc {place}0000000 {4 * MB}" for place in (1, 2, 3)]
    lines += [kernel(1, "fill", f"w{place}0000000:{4 * MB}") for place in (1, 2, 3)]
    lines.append("step")
    for _ in range(STEPS):
        lines += [kernel(1, "sum", f"r{place}0000000:{4 * MB}") for place in (1, 2, 3)]
        lines.append("step")
    return read(lines)


def layers(sizes: list[int], weight: int = MB // 2 * 3, milliseconds: float = 10) -> Tape:
    """A network in training: a kernel for each layer's forward and backward pass. Sizes of activations in MB."""

    def lines() -> Iterator[str]:
        places = range(1, len(sizes) + 1)
        for place in places:
            yield f"alloc {place}0000000000 {weight}"
            yield kernel(1, "fill", f"w{place}0000000000:{weight}")
        yield "step"
        for _ in range(STEPS):
            for place in places:
                size, before = sizes[place - 1] * MB, sizes[place - 2] * MB
                yield f"alloc {place}00000 {size}"
                read_before = [f"r{place - 1}00000:{before}"] if place > 1 else []
                yield kernel(
                    milliseconds, "layer", f"r{place}0000000000:{weight}", *read_before, f"w{place}00000:{size}"
                )
            for place in reversed(places):
                operands = [f"w{place}0000000000:{weight}", f"r{place}00000:{sizes[place - 1] * MB}"]
                yield kernel(milliseconds, "layer_backward", *operands)
                yield f"free {place}00000"
            yield "step"

    return read(lines())


def play(name: str, tape: Tape, limit: int, link: Link = LINK) -> Outcome:
    return Replay(tape, limit, link).play(POLICIES[name](tape, limit, link), MEASURED)


def compute_seconds(tape: Tape) -> float:
    before = tape.seconds_before()
    return (before[tape.steps[-1]] - before[tape.steps[-1 - MEASURED]]) / MEASURED


def peak(tape: Tape) -> int:
    return max(tape.live_bytes())


def test_a_tape_is_read() -> None:
    tape = layers([8, 8])
    assert len(tape.kernels) == 2 + STEPS * 4 and len(tape.steps) == STEPS + 2
    assert peak(tape) == 2 * 8 * MB + 2 * MB // 2 * 3
    forward = tape.kernels[tape.steps[1] + 1]
    assert [tensor.nbytes for tensor in forward.reads] == [MB // 2 * 3, 8 * MB]
    assert [tensor.nbytes for tensor in forward.fresh] == [8 * MB]
    (activation,) = forward.fresh
    assert activation.next_use(tape.steps[1] + 2) == tape.steps[1] + 2
    assert activation.dies == tape.steps[1] + 3


def test_small_tensors_and_what_no_kernel_uses_are_left_out() -> None:
    tape = read(["alloc 100 2000000", "free 100", "alloc 100 10", kernel(1, "fill", "w100:10"), "step"])
    assert tape.kernels[0].fresh == () and tape.live_bytes() == [0]


def test_what_is_used_in_turn_misses_every_time_on_demand() -> None:
    outcome = play("IBM", in_turn(), 8 * MB)
    # Two of three fit, and what was unused longest is always what is needed next. Nothing is written.
    assert (outcome.in_bytes, outcome.out_bytes) == (12 * MB, 0)
    assert outcome.seconds == pytest.approx(3 * (4 + 1) * MS)


def test_who_knows_the_lifetimes_misses_less() -> None:
    outcome = play("G10", in_turn(), 8 * MB)
    assert 6 * MB <= outcome.in_bytes <= 8 * MB and outcome.out_bytes == 0  # at best three misses in two steps
    assert 6 * MS <= outcome.seconds < 3 * (4 + 1) * MS
    assert outcome.most_bytes == 8 * MB


def test_faults_cost_beside_the_copy() -> None:
    """DeepUM prefetches all three, always too late: there is nothing else to compute."""
    link = Link(1e9, 1e9, 2 * MS)
    assert play("DeepUM", in_turn(), 8 * MB, link).seconds >= 3 * (4 + 2) * MS


@pytest.mark.parametrize("name", POLICIES)
def test_with_enough_memory_nothing_waits(name: str) -> None:
    tape = layers([8, 16, 8, 4])
    outcome = play(name, tape, peak(tape))
    if name in UNAWARE:
        assert outcome.out_bytes > 0
    else:
        assert (outcome.in_bytes, outcome.out_bytes) == (0, 0)
        assert outcome.seconds == pytest.approx(compute_seconds(tape))


@pytest.mark.parametrize("name", ["Capuchin", "G10"])
def test_who_plans_hides_what_can_be_hidden(name: str) -> None:
    """A copy takes less than a kernel, and the first layers' gaps are long."""
    tape = layers([8] * 8)
    limit = peak(tape) - 20 * MB
    outcome = play(name, tape, limit)
    assert outcome.out_bytes >= 20 * MB
    assert outcome.seconds == pytest.approx(compute_seconds(tape))
    on_demand = play("IBM", tape, limit)
    assert on_demand.seconds > outcome.seconds


def test_vdnn_offloads_what_the_backward_pass_reads_and_waits_for_it() -> None:
    tape = layers([8] * 8)
    outcome = play("vDNN", tape, peak(tape))
    # But for the last layer's output, which the next kernel reads.
    assert outcome.out_bytes == outcome.in_bytes == 7 * 8 * MB
    assert outcome.most_bytes < peak(tape) - 3 * 8 * MB
    slow = Link(1e9, 0.5e9, 0.0)  # the copy of a layer's input takes 16 ms, its kernel 10
    assert play("vDNN", tape, peak(tape), slow).seconds == pytest.approx(compute_seconds(tape) + 7 * 6 * MS)


def test_capuchin_computes_again_what_copies_cannot_hide() -> None:
    tape = layers([8] * 8, milliseconds=1)
    slow = Link(0.1e9, 0.1e9, 0.0)
    outcome = play("Capuchin", tape, peak(tape) - 8 * MB, slow)
    # The first layer reads nothing but its weight, which is written by the step's last kernel: one millisecond more.
    assert (outcome.out_bytes, outcome.in_bytes) == (0, 0)
    assert outcome.seconds == pytest.approx(compute_seconds(tape) + 1 * MS)


@pytest.mark.parametrize("name", ["vDNN", "Capuchin"])
def test_policies_for_activations_need_room_for_the_weights(name: str) -> None:
    tape = layers([8, 8], weight=30 * MB)
    with pytest.raises(DoesNotFit):
        play(name, tape, 50 * MB)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(8))
def test_no_policy_beats_its_bounds(name: str, seed: int) -> None:
    random_ = random.Random(seed)
    tape = layers(
        [random_.randint(2, 20) for _ in range(random_.randint(3, 12))], milliseconds=random_.choice([1, 5, 20])
    )
    link = Link(random_.choice([1e9, 5e9]), random_.choice([1e9, 5e9]), random_.choice([0.0, 1e-5]))
    limit = int(peak(tape) * random_.uniform(0.5, 0.9))
    largest = max(sum(one.nbytes for one in (*kernel.reads, *kernel.fresh)) for kernel in tape.kernels)
    try:
        outcome = play(name, tape, limit, link)
    except DoesNotFit:
        assert not POLICIES[name].may_exceed
        return
    assert outcome.most_bytes <= max(limit, largest)
    bound = max(compute_seconds(tape), outcome.out_bytes / link.outwards, outcome.in_bytes / link.inwards)
    assert outcome.seconds >= bound * (1 - 1e-9)


def test_the_base_policy_is_on_demand() -> None:
    tape = in_turn()
    outcome = Replay(tape, 8 * MB, LINK).play(Policy(tape, 8 * MB, LINK), MEASURED)
    assert outcome.in_bytes == 12 * MB
