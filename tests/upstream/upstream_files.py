"""PyTorch's own test files, of 2.6.0, run as they are by an interpreter with the patched wheel: with LMS, and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TAG = "v2.6.0"
LIMIT = 16 << 10  # bytes: next to nothing, so that all tensors leave again and again
INSIDE = Path(__file__).parent / "inside"
MOST_DEATHS = 20  # of processes, for one file
FINISHED = (0, 1, 5)  # what pytest ends with: all passed; some failed; there was none to run
# What pip installs beside the wheel for them.
NEEDS = (
    "expecttest==0.3.0",
    "hypothesis==6.170.15",
    "psutil==7.2.2",
    "pytest==9.2.0",
    "pyyaml==6.0.3",
    "scipy==1.17.1",
)
# The files, and which part of the tests of each is the sample: all together a minute or two.
FILES = {
    "test_torch.py": 0.05,
    "test_autograd.py": 0.05,
    "test_nn.py": 0.05,
    "test_serialization.py": 0.1,
    "test_dataloader.py": 0.05,
    "test_jit.py": 0.03,
    "test_linalg.py": 0.015,
    "test_sparse.py": 0.02,
    "distributed/test_c10d_gloo.py": 0.06,
    "distributed/rpc/test_tensorpipe_agent.py": 0.03,
}
SLOW = (
    *("test_dataloader.py", "test_jit.py", "test_linalg.py", "test_nn.py", "test_serialization.py", "test_sparse.py"),
    "distributed/rpc/test_tensorpipe_agent.py",
)


@dataclass(frozen=True)
class Outcome:
    """What became of a test; `seconds` are of processors."""

    status: str  # pytest's passed, failed, skipped; or died
    text: str
    seconds: float


@dataclass(frozen=True)
class Sample:
    """A part of a file's tests, which the seed chooses."""

    file: str
    fraction: float
    seed: str


def run(python: Path, tests: Path, sample: Sample, limit: int | None, file: Path) -> dict[str, Outcome]:
    """Runs the sample and returns what became of each test, by its name. `tests` is upstream's folder.

    `file` is where the outcomes are kept. A process that dies, which is an outcome of the test that it was at, is followed by another one that goes on.
    """
    file.touch()
    for _ in range(MOST_DEATHS):
        before = _read(file)
        with tempfile.TemporaryDirectory() as scratch:  # a short path, since tests make sockets there
            code, output = _run_process(python, tests, sample, limit, file, scratch)
        known = _read(file)
        running = [name for name, outcome in known.items() if outcome is None]
        if code in FINISHED and not running:
            return {name: outcome for name, outcome in known.items() if outcome is not None}
        if known == before or not running:
            raise RuntimeError(f"{sample.file} ended with status {code} outside of a test:\n{output[-6000:]}")
        with file.open("a") as rows:
            rows.write(json.dumps([running[-1], "died", f"status {code}\n{output[-6000:]}", 0]) + "\n")
    raise RuntimeError(f"{sample.file}: {MOST_DEATHS} processes died:\n{output[-6000:]}")


def _read(file: Path) -> dict[str, Outcome | None]:
    """The outcomes; None for a test that has begun and not ended."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row[0]: None if row[1] is None else Outcome(*row[1:]) for row in rows}


def _run_process(
    python: Path, tests: Path, sample: Sample, limit: int | None, file: Path, scratch: str
) -> tuple[int, str]:
    """The exit status and the output. What it has started ends with it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON") and key != "CI"}
    environment = {
        **clean,
        "PYTHONPATH": f"{INSIDE}{os.pathsep}{tests}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
        "TMPDIR": scratch,
        "LMS_UPSTREAM_OUTCOMES": str(file),
        "LMS_UPSTREAM_FRACTION": str(sample.fraction),
        "LMS_UPSTREAM_SEED": sample.seed,
        **({} if limit is None else {"LMS_UPSTREAM_LIMIT": str(limit)}),
    }
    words = [python, "-m", "pytest", "-q", "-p", "upstream_outcomes", "-p", "no:cacheprovider", "--tb=short"]
    words += ["--noconftest", "-c", os.devnull, "--rootdir", tests, sample.file]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            words, cwd=tests, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        code = process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return code, output.read().decode(errors="replace")
