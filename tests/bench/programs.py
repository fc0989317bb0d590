"""The programs of tests/programs at half and at 15 % of their peak: seconds of processors, against the same without LMS.

``python tests/bench/programs.py [--repeat N] [PROGRAM...]`` with an interpreter that has the patched wheel and what
tests/programs/requirements.txt lists. The runs of a program take turns, each in a forked process of one thread; the table has
the fastest of each kind: what else the machine does only adds. What a program imports at its top does not count, since that is
done before the forks. Results must agree to the bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))

import program_runs

COMPARED = ("stock", "0.5", "0.15")


def outcomes(name: str, repeat: int) -> list[dict[str, Any]]:
    """What became of every run. The first two only find the peak."""
    found = program_runs.outcomes(sys.executable, name, ("stock", "ample", *COMPARED * repeat))
    for each in found:
        if "failure" in each:
            raise SystemExit(f"{name} with {each['run']}: {each['failure']}")
        if each["results"] != found[0]["results"]:
            raise SystemExit(f"{name} with {each['run']}: the results differ from those without LMS")
    return found


def row(name: str, repeat: int) -> str:
    found = outcomes(name, repeat)
    peak = max(stats["allocated_bytes.peak"] for stats in found[1]["stats"])
    seconds = {run: min(each["processors"] for each in found[2:] if each["run"] == run) for run in COMPARED}
    ratios = " | ".join(f"{seconds[run] / seconds['stock']:.2f}" for run in COMPARED[1:])
    return f"| {name.replace('_', ' ')} | {peak / 2**20:.0f} | {seconds['stock']:.2f} | {ratios} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of processors of programs with LMS, against those without.")
    parser.add_argument(
        "programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(program_runs.NAMES)}; all by default"
    )
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind (default %(default)s)")
    options = parser.parse_args()
    if unknown := set(options.programs) - set(program_runs.NAMES):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    print("| program | peak, MiB | stock, s | 50 % | 15 % |\n| --- | ---: | ---: | ---: | ---: |")
    for name in options.programs or program_runs.NAMES:
        print(row(name, options.repeat), flush=True)


if __name__ == "__main__":
    main()
