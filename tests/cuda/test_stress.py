"""Runs the stress of the CUDA allocator decorator (stress.cc): the real libc10_cuda.so of the official wheel that a tag
names, the graft's decorator and pager, and the simulated CUDA beneath them.

A step of the stress is one thing that a program does: it allocates, frees or uses up to three blocks (a kernel that
compares and rewrites them), copies one to another or from and to the host, waits, reclaims, changes the limit, or does
something rarer. What is compared of a block is eight bytes of every MiB, which is all that the simulation then copies; every page
has two such places. Most steps are cheap, yet a million of them move more than a TiB through the host's store.

 * plain: SEEDS seeds of STEPS steps each, one thread, reproducible exactly;
 * foresight, threads, streams: with the policy "iteration", with three threads, with streams that are real threads;
 * pageable: with copies that pass through the host's caches in full, which is slow;
 * address, thread: all that is compiled here, under sanitizers; libc10_cuda.so itself is not instrumented.

LMS_TEST_SEEDS sets how many seeds there are of the first kind, LMS_TEST_SEED the first one, and LMS_TEST_STEPS the
steps of every run. A run that fails says the command that repeats it. Two run at a time.
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

from lmsbuild import catalogue, compile, cuda, download, paths, series, symbols
from lmsbuild.target import target_for
from lmsbuild.wheel import WheelFile

HERE = Path(__file__).parent
PATCHES = paths.patches_folder()
TAG = "v2.6.0"
FIRST_SEED = int(os.environ.get("LMS_TEST_SEED", "1"))
SEEDS = int(os.environ.get("LMS_TEST_SEEDS", "20"))
STEPS = 1_000_000
TIMEOUT_S = 900
FLAVOURS = {  # as the simulation's own
    "plain": ["-O2"],
    "address": ["-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fno-omit-frame-pointer", "-fsanitize=thread"],
}
TOTALS = re.compile(r"^out (\d+) MiB, in (\d+) MiB, foreseen (\d+), ", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A run of the program."""

    kind: str
    seed: int
    steps: int
    flavour: str = "plain"
    threads: int = 1
    policy: str = "lru"
    options: Mapping[str, str] = field(default_factory=dict)  # of the simulation

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.seed}"

    def words(self, program: Path) -> list[str]:
        steps = os.environ.get("LMS_TEST_STEPS", str(self.steps))
        return [str(program), str(self.seed), steps, str(self.threads), self.policy]


REAL_THREADS = {"SIM_CUDA_MODE": "threads"}
READABLE = {"LMS_CUDA_READABLE": "1"}  # what is away is mapped for reading
PAGEABLE = {"SIM_CUDA_PINNED_LIMIT": str(128 << 20)}  # beyond that the host's store is not page-locked
RUNS = [
    *(
        Run("plain", seed, STEPS, options=READABLE if seed % 4 == 0 else {})
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS)
    ),
    *(Run("foresight", seed, 300_000, policy="iteration") for seed in range(1, 5)),
    *(Run("pageable", seed, 20_000, options=PAGEABLE) for seed in range(1, 4)),
    *(Run("threads", seed, 200_000, threads=3) for seed in range(1, 4)),
    *(Run("threads", seed, 200_000, threads=3, policy="iteration") for seed in range(4, 7)),
    *(Run("streams", seed, 30_000, threads=3, options=REAL_THREADS) for seed in range(1, 3)),
    *(Run("streams", seed, 30_000, threads=3, policy="iteration", options=REAL_THREADS) for seed in range(3, 5)),
    Run("address", 1, 100_000, flavour="address"),
    Run("address", 2, 60_000, flavour="address", threads=3, policy="iteration"),
    Run("address", 3, 10_000, flavour="address", threads=3, options=REAL_THREADS),
    Run("thread", 1, 20_000, flavour="thread", threads=3),
    Run("thread", 2, 20_000, flavour="thread", threads=3, policy="iteration"),
    Run("thread", 3, 8_000, flavour="thread", threads=3, policy="iteration", options=REAL_THREADS),
]


@dataclass(frozen=True)
class Base:
    """What the program is compiled with and linked to."""

    patched: Path  # the patched tree
    wheel: Path  # the official wheel's headers and libraries of c10
    runtime: cuda.Runtime
    standard: str


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("stress-base")
    patched, unpacked = folder / "patched", folder / "wheel"
    for name, data in series.new_files(PATCHES, "pytorch", series.read_series(PATCHES, "pytorch")).items():
        (patched / name).parent.mkdir(parents=True, exist_ok=True)
        (patched / name).write_bytes(data)
    tag = catalogue.find_tag(PATCHES, TAG)
    with WheelFile(download.fetch(tag, target_for(None), paths.cache_folder())) as wheel:
        for name in wheel.members:
            if name.startswith(("torch/include/c10/", "torch/lib/libc10")) and not name.endswith("/"):
                (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
                (unpacked / name).write_bytes(wheel.read(name))
        version = cuda.version_of(wheel.read("torch/version.py"))
    runtime = cuda.unpack(PATCHES, version, paths.cache_folder(), folder / "cuda")
    return Base(patched, unpacked, runtime, tag.standard)


@pytest.fixture(scope="module")
def build(
    base: Base, simulator: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """build(flavour): the program, compiled if need be."""
    folder = tmp_path_factory.mktemp("stress")
    known: dict[str, Path] = {}

    def build_once(flavour: str) -> Path:
        if flavour not in known:
            (folder / flavour).mkdir()
            known[flavour] = _build(base, simulator(flavour), FLAVOURS[flavour], folder / flavour)
        return known[flavour]

    return build_once


def _build(base: Base, simulator: Path, options: list[str], folder: Path) -> Path:
    libraries = base.wheel / "torch/lib"
    flags = [f"-std={base.standard}", "-g1", *options, "-pthread", "-Wall", "-Wextra", "-Werror"]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(symbols.uses_new_strings(libraries / 'libc10.so'))}")
    flags += [f"-I{base.patched / 'aten/src'}", f"-I{HERE / 'simulator'}"]
    flags += [f"-isystem{base.wheel / 'torch/include'}", f"-isystem{base.runtime.include}"]
    glue = base.patched / "aten/src/ATen"
    sources = [glue / "LmsPager.cpp", glue / "cuda/LmsCuda.cpp", HERE / "stress.cc"]
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(2) as pool:
        words = ([*compile.compiler(), *flags, "-c", str(source)] for source in sources)
        list(pool.map(lambda pair: _must([*pair[0], "-o", str(pair[1])]), zip(words, objects, strict=True)))
    # The simulation stands before c10 in the order in which the loader looks for libcudart, so it is found there.
    linked = [simulator / f"libcudart.so.{base.runtime.library.name.split('.')[2]}", simulator / "libcuda.so.1"]
    linked += [libraries / "libc10_cuda.so", libraries / "libc10.so"]
    paths_at_run_time = [f"-Wl,-rpath,{path}" for path in (simulator, libraries)]
    program = folder / "stress"
    _must([*compile.compiler(), *flags, *map(str, [*objects, *linked]), *paths_at_run_time, "-ldl", "-o", str(program)])
    return program


def _must(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr[-5000:]}"


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, build: Callable[[str], Path]) -> Iterator[dict[str, Future[str]]]:
    """What the selected runs printed, by their names. Two go on at a time, ahead of the tests that wait for them."""
    selected: list[Run] = []
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_contents":
            selected.append(item.callspec.params["run"])
    programs = {flavour: build(flavour) for flavour in dict.fromkeys(run.flavour for run in selected)}
    with ThreadPoolExecutor(2) as pool:
        yield {run.id: pool.submit(_run, run.words(programs[run.flavour]), run.options) for run in selected}
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


def test_a_seed_repeats_a_run(build: Callable[[str], Path]) -> None:
    words = [str(build("plain")), str(FIRST_SEED), "20000"]
    assert _run(words, {}) == _run(words, {})


@pytest.mark.parametrize(
    ("option", "every"), [("drop_waits", 1), ("drop_waits", 20), ("early_events", 1), ("early_events", 20)]
)
def test_a_missing_wait_is_found_out(option: str, every: int, build: Callable[[str], Path]) -> None:
    """The device leaves out waits that the pager asked for, or says too early that work is over."""
    words = [str(build("plain")), str(FIRST_SEED), "100000"]
    done = _attempt(words, {f"SIM_CUDA_{option.upper()}": str(every)})
    assert done.returncode == 1, done.stdout[-5000:]
    assert re.search(r"wrong contents|memory that is not there", done.stdout), done.stdout
