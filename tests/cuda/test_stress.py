"""Runs the stress of the CUDA allocator decorator (stress.cc): the real libc10_cuda.so, of official wheels or for
v1.13.1 built from upstream's source (c10_cuda.py), the graft's decorator and pager, and the simulated CUDA beneath them.

A step of the stress is one thing that a program does: it allocates, frees or uses up to three blocks (a kernel that
compares and rewrites them), copies one to another or from and to the host, waits, reclaims, changes the limit, or does
something rarer. What is compared of a block is eight bytes of every MiB, which is all that the simulation then copies; every page
has two such places. Most steps are cheap, yet a million of them move more than a TiB through the host's store.

 * plain: SEEDS seeds of STEPS steps each, one thread, reproducible exactly;
 * foresight, threads, streams: with the policy "iteration", with three threads, with streams that are real threads;
 * pageable: with copies that pass through the host's caches in full, which is slow;
 * address, thread: all that is compiled here, under sanitizers; libc10_cuda.so itself is not instrumented;
 * object: with releases whose allocator is a single object and free functions, as before 2.0.

LMS_TEST_SEEDS sets how many seeds there are of the first kind, LMS_TEST_SEED the first one, and LMS_TEST_STEPS the
steps of every run. LMS_TEST_FULL=1 has more seeds of most kinds, and more steps. A run that fails says the command that
repeats it. Two run at a time.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from samples import FULL

TAG = "v2.6.0"
FIRST_SEED = int(os.environ.get("LMS_TEST_SEED", "1"))
SEEDS = int(os.environ.get("LMS_TEST_SEEDS", "20" if FULL else "4"))
STEPS = 1_000_000 if FULL else 60_000
TIMEOUT_S = 900
TOTALS = re.compile(r"^out (\d+) MiB, in (\d+) MiB, foreseen (\d+), ", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A run of the program."""

    kind: str
    seed: int
    steps: int
    flavour: str = "plain"
    tag: str = TAG
    threads: int = 1
    policy: str = "lru"
    options: Mapping[str, str] = field(default_factory=dict)  # of the simulation

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.seed}" if self.tag == TAG else f"{self.kind}-{self.tag}-{self.seed}"

    def words(self, program: Path) -> list[str]:
        steps = os.environ.get("LMS_TEST_STEPS", str(self.steps))
        return [str(program), str(self.seed), steps, str(self.threads), self.policy]


def seeds(first: int, last: int) -> range:
    """Of a kind other than the first."""
    return range(first, last + 1 if FULL else first + 1)


REAL_THREADS = {"SIM_CUDA_MODE": "threads"}
READABLE = {"LMS_CUDA_READABLE": "1"}  # what is away is mapped for reading
PAGEABLE = {"SIM_CUDA_PINNED_LIMIT": str(128 << 20)}  # beyond that the host's store is not page-locked
RUNS = [
    *(
        Run("plain", seed, STEPS, options=READABLE if seed % 4 == 0 else {})
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS)
    ),
    *(Run("foresight", seed, STEPS * 3 // 10, policy="iteration") for seed in seeds(1, 4)),
    *(Run("pageable", seed, 20_000, options=PAGEABLE) for seed in seeds(1, 3)),
    *(Run("threads", seed, STEPS // 5, threads=3) for seed in seeds(1, 3)),
    *(Run("threads", seed, STEPS // 5, threads=3, policy="iteration") for seed in seeds(4, 6)),
    *(Run("streams", seed, 30_000, threads=3, options=REAL_THREADS) for seed in seeds(1, 2)),
    *(Run("streams", seed, 30_000, threads=3, policy="iteration", options=REAL_THREADS) for seed in seeds(3, 4)),
    *(Run("object", seed, STEPS if FULL else STEPS // 2, tag=tag) for seed, tag in enumerate(("v1.4.0", "v1.13.1"), 1)),
    Run("object", 3, STEPS // 10, tag="v1.4.0", threads=3),
    Run("object", 4, STEPS // 10, tag="v1.13.1", threads=3, policy="iteration"),
    Run("object", 5, 10_000, tag="v1.13.1", threads=3, options=REAL_THREADS),
    *([Run("object", 6, 50_000, tag="v1.13.1", flavour="address")] if FULL else []),
    Run("address", 1, STEPS // 10, flavour="address"),
    Run("address", 2, 60_000 if FULL else 20_000, flavour="address", threads=3, policy="iteration"),
    Run("address", 3, 10_000, flavour="address", threads=3, options=REAL_THREADS),
    Run("thread", 1, 20_000, flavour="thread", threads=3),
    Run("thread", 2, 20_000, flavour="thread", threads=3, policy="iteration"),
    Run("thread", 3, 8_000, flavour="thread", threads=3, policy="iteration", options=REAL_THREADS),
]


@pytest.fixture(scope="module")
def build(on_allocator: Callable[..., Path]) -> Callable[..., Path]:
    """build(flavour="plain", tag=TAG): the program."""
    return lambda flavour="plain", tag=TAG: on_allocator("stress.cc", tag, flavour)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, build: Callable[..., Path]) -> Iterator[dict[str, Future[str]]]:
    """What the selected runs printed, by their names. Two go on at a time, ahead of the tests that wait for them."""
    selected: list[Run] = []
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.function is test_contents:
            selected.append(item.callspec.params["run"])
    kinds = dict.fromkeys((run.flavour, run.tag) for run in selected)
    programs: dict[tuple[str, str], Path] = {}
    skipped: dict[tuple[str, str], BaseException] = {}  # why there is no program
    for kind in kinds:
        try:
            programs[kind] = build(*kind)
        except pytest.skip.Exception as reason:
            skipped[kind] = reason

    def start(run: Run) -> str:
        kind = run.flavour, run.tag
        if kind in skipped:
            raise skipped[kind]
        return _run(run.words(programs[kind]), run.options)

    with ThreadPoolExecutor(2) as pool:
        yield {run.id: pool.submit(start, run) for run in selected}
        pool.shutdown(cancel_futures=True)


def _run(words: list[str], options: Mapping[str, str]) -> str:
    """What the program prints when all contents are right."""
    done = _attempt(words, options)
    assert done.returncode == 0, f"{_command(words, options)}\nended with {done.returncode}:\n{done.stdout[-10000:]}"
    return done.stdout


def _attempt(words: list[str], options: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIM_", "LMS_"))}
    try:
        return subprocess.run(
            words,
            env={**environment, **options},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{_command(words, options)}\nhangs, or is very slow: {error.stdout!r}") from error


def _command(words: list[str], options: Mapping[str, str]) -> str:
    return shlex.join([*(f"{name}={value}" for name, value in options.items()), *words])


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_contents(run: Run, runs: dict[str, Future[str]]) -> None:
    printed = runs[run.id].result()
    print(printed)
    totals = TOTALS.search(printed)
    assert totals is not None, printed
    out, back, foreseen = map(int, totals.groups())
    assert out > 0 and back > 0, "nothing was paged"
    assert foreseen > 0 or run.kind != "foresight", "nothing was brought in ahead of its use"


def test_a_seed_repeats_a_run(build: Callable[..., Path]) -> None:
    words = [str(build("plain")), str(FIRST_SEED), "20000"]
    assert _run(words, {}) == _run(words, {})


@pytest.mark.parametrize(
    ("option", "every"), [("drop_waits", 1), ("drop_waits", 20), ("early_events", 1), ("early_events", 20)]
)
def test_a_missing_wait_is_found_out(option: str, every: int, build: Callable[..., Path]) -> None:
    """The device leaves out waits that the pager asked for, or says too early that work is over."""
    words = [str(build("plain")), str(FIRST_SEED), "100000"]
    done = _attempt(words, {f"SIM_CUDA_{option.upper()}": str(every)})
    assert done.returncode == 1, done.stdout[-5000:]
    # By a kernel, or by the device, where a copy was given an address without memory: whose call hears of it first says so.
    assert re.search(r"wrong contents|memory that is not there|illegal memory access|ILLEGAL_ADDRESS", done.stdout), (
        done.stdout
    )
