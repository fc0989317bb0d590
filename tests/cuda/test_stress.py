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
steps of every run. Before a release there are more seeds of most kinds, and more steps. A run that fails says the command
that repeats it. Two run at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import cases

TAG = "v2.6.0"
FIRST_SEED = int(os.environ.get("LMS_TEST_SEED", "1"))
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
        return "-".join((self.kind, *([] if self.tag == TAG else [self.tag]), str(self.seed), str(self.steps)))

    def words(self, program: Path) -> list[str]:
        steps = os.environ.get("LMS_TEST_STEPS", str(self.steps))
        return [str(program), str(self.seed), steps, str(self.threads), self.policy]


REAL_THREADS = {"SIM_CUDA_MODE": "threads"}
READABLE = {"LMS_CUDA_READABLE": "1"}  # what is away is mapped for reading
PAGEABLE = {"SIM_CUDA_PINNED_LIMIT": str(128 << 20)}  # beyond that the host's store is not page-locked
OLD, OLDEST = "v1.13.1", "v1.4.0"


def every_run(is_sample: bool) -> list[Run]:
    steps = 60_000 if is_sample else 1_000_000
    few = 10_000 if is_sample else 30_000  # where a step takes long
    count = int(os.environ.get("LMS_TEST_SEEDS", "2" if is_sample else "20"))

    def seeds(first: int, last: int) -> range:
        """Of a kind other than the first."""
        return range(first, (first if is_sample else last) + 1)

    return [
        *(
            Run("plain", seed, steps, options={} if seed % 2 else READABLE)
            for seed in range(FIRST_SEED, FIRST_SEED + count)
        ),
        *(Run("foresight", seed, steps * 3 // 10, policy="iteration") for seed in seeds(1, 4)),
        *(Run("pageable", seed, steps // 8, options=PAGEABLE) for seed in seeds(1, 3)),
        *(Run("threads", seed, steps // 5, threads=3) for seed in seeds(1, 3)),
        *(Run("threads", seed, steps // 5, threads=3, policy="iteration") for seed in seeds(4, 6)),
        *(Run("streams", seed, few, threads=3, options=REAL_THREADS) for seed in seeds(1, 2)),
        *(Run("streams", seed, few, threads=3, policy="iteration", options=REAL_THREADS) for seed in seeds(3, 4)),
        Run("object", 1, steps // 2 if is_sample else steps, tag=OLDEST),
        Run("object", 2, steps // 2 if is_sample else steps, tag=OLD),
        Run("object", 3, steps // 10, tag=OLDEST, threads=3),
        Run("object", 4, steps // 10, tag=OLD, threads=3, policy="iteration"),
        Run("object", 5, 10_000, tag=OLD, threads=3, options=REAL_THREADS),
        *([] if is_sample else [Run("object", 6, 50_000, tag=OLD, flavour="address")]),
        Run("address", 1, steps // 10, flavour="address"),
        Run("address", 2, 20_000 if is_sample else 60_000, flavour="address", threads=3, policy="iteration"),
        Run("address", 3, 10_000, flavour="address", threads=3, options=REAL_THREADS),
        Run("thread", 1, few, flavour="thread", threads=3),
        Run("thread", 2, few, flavour="thread", threads=3, policy="iteration"),
        Run("thread", 3, 8_000, flavour="thread", threads=3, policy="iteration", options=REAL_THREADS),
    ]


SAMPLE = every_run(is_sample=True)
RUNS = [
    *(pytest.param(run, id=run.id) for run in SAMPLE),
    *(
        pytest.param(run, id=run.id, marks=pytest.mark.release)
        for run in every_run(is_sample=False)
        if run not in SAMPLE
    ),
]


@pytest.fixture(scope="module")
def build(on_allocator: Callable[..., Path]) -> Callable[..., Path]:
    """build(flavour="plain", tag=TAG): the program."""
    return lambda flavour="plain", tag=TAG: on_allocator("stress.cc", tag, flavour)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, build: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """What the selected runs printed, by their names. Two go on at a time, ahead of the tests that wait for them."""

    def start(run: Run) -> str:
        program = build(run.flavour, run.tag)  # or a reason to skip
        return cases.run(run.words(program), tmp_path_factory.mktemp(run.id), run.options, TIMEOUT_S)

    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    selected: list[Run] = [item.callspec.params["run"] for item in items if item.function is test_contents]
    with ThreadPoolExecutor(2) as pool:
        yield {run.id: pool.submit(start, run) for run in selected}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("run", RUNS)
def test_contents(run: Run, runs: dict[str, Future[str]]) -> None:
    printed = runs[run.id].result()
    print(printed)
    totals = TOTALS.search(printed)
    assert totals is not None, printed
    out, back, foreseen = map(int, totals.groups())
    assert out > 0 and back > 0, "nothing was paged"
    assert foreseen > 0 or run.kind != "foresight", "nothing was brought in ahead of its use"


def test_a_seed_repeats_a_run(build: Callable[..., Path], tmp_path: Path) -> None:
    words = [build("plain"), str(FIRST_SEED), "20000"]
    assert cases.run(words, tmp_path) == cases.run(words, tmp_path)


@pytest.mark.parametrize(
    ("option", "every"), [("drop_waits", 1), ("drop_waits", 20), ("early_events", 1), ("early_events", 20)]
)
def test_a_missing_wait_is_found_out(option: str, every: int, build: Callable[..., Path], tmp_path: Path) -> None:
    """The device leaves out waits that the pager asked for, or says too early that work is over."""
    words = [build("plain"), str(FIRST_SEED), "100000"]
    done = cases.attempt(words, tmp_path, {f"SIM_CUDA_{option.upper()}": str(every)}, TIMEOUT_S)
    assert done.returncode == 1, done.stdout[-5000:]
    # By a kernel, or by the device, where a copy was given an address without memory: whose call hears of it first says so.
    assert re.search(r"wrong contents|memory that is not there|illegal memory access|ILLEGAL_ADDRESS", done.stdout), (
        done.stdout
    )
