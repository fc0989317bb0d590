"""Predicted training steps (predictions/): they keep what can be said of them without a GPU.

Before a release they compare LMS with what else there is, too, and predict programs of several GPUs.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from checks import RUNNER
from predictions import literature, machine, predict, timeline

H200 = predict.Machine("h200")
compares = pytest.mark.release  # three minutes


@pytest.fixture(scope="module")
def predictor(cuda_python: Path, train_environment: dict[str, str]) -> predict.Predictor:
    return predict.Predictor(cuda_python, train_environment)


@pytest.fixture(scope="module")
def found(predictor: predict.Predictor) -> dict[str, predict.Predicted]:
    return predictor.compare(H200, "transformer")


@compares
def test_with_enough_memory_lms_takes_what_stock_takes(found: dict[str, predict.Predicted]) -> None:
    assert found["lms 1x"].seconds == pytest.approx(found["stock"].seconds, rel=0.01)
    assert sum(found["lms 1x"].moved.values()) == 0


@compares
@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_a_step_is_no_shorter_than_its_bound(found: dict[str, predict.Predicted], factor: float) -> None:
    stock, lms = found["stock"], found[f"lms {factor:g}x"]
    assert lms.peak <= stock.peak / factor * 1.01
    assert lms.moved["out"] > stock.peak - stock.peak / factor - (1 << 30)  # what does not fit has to leave, at least
    assert lms.seconds >= lms.bound(H200, stock) > stock.seconds


@compares
def test_copies_out_and_in_run_beside_each_other(found: dict[str, predict.Predicted]) -> None:
    """What the optimiser is done with leaves while what it needs next comes back."""
    lms = found["lms 1.5x"]
    assert lms.seconds < 0.8 * (lms.busy["out"] + lms.busy["in"])


@compares
@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_lms_is_ahead_of_what_was_published(found: dict[str, predict.Predicted], factor: float) -> None:
    """Though published policies know a step by heart, and their calls take no time."""
    published = [found[name] for policy in literature.POLICIES if (name := f"{policy} {factor:g}x") in found]
    assert len(published) >= 2
    assert found[f"lms {factor:g}x"].seconds < min(one.seconds for one in published)


@compares
def test_the_peers_trade_what_they_are_known_to_trade(found: dict[str, predict.Predicted]) -> None:
    stock, offloaded, recomputed = (found[name] for name in ("stock", "save_on_cpu", "checkpoint"))
    assert offloaded.peak < stock.peak and min(offloaded.moved.values()) > 0
    assert recomputed.peak < stock.peak and sum(recomputed.moved.values()) == 0
    # The layers' forward pass, done twice, is a quarter of a step, but for the optimiser and the head.
    assert 1.1 * stock.busy["kernel"] < recomputed.busy["kernel"] < 1.34 * stock.busy["kernel"]


@compares
def test_kernels_take_as_long_as_their_arithmetic(found: dict[str, predict.Predicted]) -> None:
    """6 FLOP for each parameter that multiplies, and token; attention; all at the peak."""
    width, layers, length, tokens, vocabulary = 4096, 4, 2048, 8 * 2048, 16384
    products = 6 * tokens * (layers * 12 * width * width + width * vocabulary)
    attention = 0.5 * 3.5 * layers * 4 * tokens * length * width
    least = (products + attention) / H200["flops.float16"]
    assert least < found["stock"].busy["kernel"] < 1.5 * least  # the rest is bound by the memory


@pytest.mark.release
def test_every_batch_is_computed_and_the_step_taken_once(predictor: predict.Predictor) -> None:
    """As expect.py has it."""
    one, two = (predictor.predict(H200, f"transformer:2048:2:{batches}", "stock", "stock") for batches in (1, 2))
    assert 1.5 < two.busy["kernel"] / one.busy["kernel"] < 2
    assert two.peak == pytest.approx(one.peak, rel=0.2)


def test_a_prediction_is_the_same_every_time(predictor: predict.Predictor) -> None:
    """Though threads of LMS and of autograd work at the same time as the program's."""
    limit = 3_500_000_000
    one, other = (predictor.predict(H200, "convnet", "lms", f"lms:{limit}") for _ in range(2))
    assert one.moved["out"] > 0
    assert (one.seconds, one.moved, one.busy, one.events) == (other.seconds, other.moved, other.busy, other.events)


def test_every_program_is_known() -> None:
    text = (Path(predict.__file__).parent / "programs.py").read_text().partition("PROGRAMS: ")[2]
    assert re.findall(r'^    "(\w+)": ', text, re.MULTILINE) == list(predict.PROGRAMS)


@pytest.mark.parametrize(
    "program",
    [
        "graph",
        *(pytest.param(each, marks=pytest.mark.release) for each in ("streams", "functions", "pipeline", "processes")),
    ],
)
def test_a_program_is_predicted(program: str, predictor: predict.Predictor) -> None:
    stock = predictor.predict(H200, program, "stock", "stock")
    lms = predictor.predict(H200, program, "lms 2x", f"lms:{stock.peak // 2}")
    assert lms.moved["out"] > stock.moved["out"] and lms.seconds >= lms.bound(H200, stock)
    # A graph's memory stays. The streams of one GPU share its engine; two GPUs have one each.
    assert lms.peak <= stock.peak * (0.95 if program == "graph" else 0.51)
    devices = {event.device for event in lms.events if event.lane == "kernel"}
    assert len(devices) == predict.GPUS.get(program, 1)
    kernels = {lane for lane in timeline.parted(lms.events) if lane.startswith("kernels")}
    assert len(kernels) >= {"streams": 4, "pipeline": 2}.get(program, 1)


def test_training_in_virtual_time_computes_the_same(cuda_python: Path, train_environment: dict[str, str]) -> None:
    environment = {
        **train_environment,
        "SIM_CUDA_MODE": "timed",
        "SIM_CUDA_MACHINE": str(machine.MACHINES / "h200.toml"),
        "LMS_TEST_SEEDS": "1",
        "LMS_TEST_FRAMEWORK": "torch",
    }
    words = [str(cuda_python), str(RUNNER), "checks_train_optimizers", "check_train_with_fused_optimizers"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    outcome = json.loads(done.stdout)
    assert outcome["status"] == "passed", outcome["text"] + done.stderr


@pytest.mark.parametrize("name", machine.NAMES)
def test_a_machine_says_where_its_numbers_are_from(name: str) -> None:
    text = machine.Machine(name).text
    numbers = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    assert len(numbers) > 20
    for paragraph in text.split("\n\n"):
        assert paragraph.startswith("# "), paragraph
    assert machine.Machine(name).device
    without = machine.Machine(name).text_without(machine.HANDLES)
    assert len(text.splitlines()) - len(without.splitlines()) == len(machine.HANDLES)


def test_the_committed_predictions_are_of_these_machines() -> None:
    known = json.loads((Path(__file__).parents[2] / "ci/gpu/predictions.json").read_text())
    assert set(known) == {machine.Machine(name).device for name in machine.NAMES}
    for models in known.values():
        assert set(models) == set(predict.MODELS)
        for contenders in models.values():
            assert contenders.keys() >= {"stock", "lms 1x", "lms 1.5x", "lms 2x", "lms 4x", *predict.PEERS}
            assert all(one["seconds"] >= 0.99 * one["bound_seconds"] for one in contenders.values())
