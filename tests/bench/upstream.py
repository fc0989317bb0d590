"""Upstream's own tests under a limit of 16 KiB: seconds of processors, against the same without LMS.

``python tests/bench/upstream.py [--fraction F] [--seed S] [--repeat N] TREE`` with an interpreter that has the patched wheel of
v2.6.0 and what tests/upstream/upstream_files.py lists; `lmsbuild source pytorch:v2.6.0 TREE` makes the tree. Both sides run a
file in turn, one process at a time, and the fastest runs are compared. What counts is the time in tests, not that of imports.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "upstream"))

import upstream_files
from upstream_files import FILES, Sample


def seconds(sample: Sample, tests: Path, limit: int | None) -> tuple[int, float]:
    """How many tests passed, and the seconds of all."""
    with tempfile.TemporaryDirectory() as folder:
        found = upstream_files.run(Path(sys.executable), tests, sample, limit, Path(folder) / "outcomes")
    passed = sum(outcome.status == "passed" for outcome in found.values())
    return passed, sum(outcome.seconds for outcome in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of processors of upstream's tests with LMS and without.")
    parser.add_argument("tree", type=Path, help="PyTorch's source at v2.6.0")
    parser.add_argument("--fraction", type=float, help="of every file's tests; by default that of the test suite")
    parser.add_argument("--seed", default="0", help="which tests (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each side (default %(default)s)")
    options = parser.parse_args()
    tests = (options.tree / "test").resolve()
    print("| file | tests | stock, s | LMS, s | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    totals = [0.0, 0.0]
    for file, fraction in FILES.items():
        sample = Sample(file, options.fraction or fraction, options.seed)
        runs = [
            [seconds(sample, tests, limit) for limit in (None, upstream_files.LIMIT)] for _ in range(options.repeat)
        ]
        if len(passed := {count for pair in runs for count, _ in pair}) != 1:
            raise SystemExit(f"{file}: {sorted(passed)} tests passed; the test suite says which fail with LMS")
        stock, managed = (min(pair[side][1] for pair in runs) for side in (0, 1))
        if not stock:
            raise SystemExit(f"{file}: a fraction of {sample.fraction} is not one test; take a larger one")
        totals = [totals[0] + stock, totals[1] + managed]
        print(f"| {file} | {passed.pop()} | {stock:.1f} | {managed:.1f} | {managed / stock:.2f} |", flush=True)
    print(f"| all | | {totals[0]:.1f} | {totals[1]:.1f} | {totals[1] / totals[0]:.2f} |")


if __name__ == "__main__":
    main()
