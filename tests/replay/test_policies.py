"""The policies under AddressSanitizer and UndefinedBehaviorSanitizer, driven by random programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from presets import Builds


@pytest.fixture(scope="module")
def stress(builds: Builds) -> Path:
    return builds.get("address", "policy_stress")


def _run(program: Path, policy: str, seed: int, events: int, period: int) -> dict[str, int]:
    done = subprocess.run(
        [str(program), policy, str(seed), str(events), str(period)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{policy}, seed {seed}, period {period}:\n{done.stdout}{done.stderr}"
    return {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", done.stdout)}


@pytest.mark.parametrize("period", [0, 60, 300, 2000])
@pytest.mark.parametrize("seed", [1, 2])
def test_lru_names_what_a_plain_search_finds(stress: Path, seed: int, period: int) -> None:
    counts = _run(stress, "lru", seed, 30000, period)
    assert counts["victims"] > 500
    assert counts["foreseen"] == 0


@pytest.mark.parametrize("period", [0, 60, 300, 2000, 6000])
@pytest.mark.parametrize("seed", [1, 2])
def test_iteration_never_names_a_block_that_cannot_move(stress: Path, seed: int, period: int) -> None:
    counts = _run(stress, "iteration", seed, 30000, period)
    assert counts["victims"] > 300


def test_iteration_foresees_a_program_that_is_disturbed(stress: Path) -> None:
    counts = _run(stress, "iteration", 3, 60000, 300)
    assert counts["departures"] > 20
    assert counts["foreseen"] > 0.9 * counts["events"]


def test_iteration_foresees_nothing_in_noise(stress: Path) -> None:
    assert _run(stress, "iteration", 3, 30000, 0)["foreseen"] < 300
