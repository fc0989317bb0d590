"""Runs a program that uses PyTorch on the simulated GPU: `device="cuda"` trains there, by the CPU's kernels.

    python tests/cuda/operators/run.py --python PYTHON [-o OPTION=VALUE]... PROGRAM.py [ARGUMENT]...

PYTHON has a CUDA build of torch, 2.5 or newer, with LMS or without, and the libraries that it requires; the Python that
runs this has lmsbuild. The options are those of simulator/sim.h: `-o devices=2 -o seed=7 -o memory=268435456`. What is
built is kept in the folder that LMSBUILD_CACHE says.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from operators import build
from simulator import build as simulator_build

SIM = Path(simulator_build.__file__).with_name("sim.h")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.program:
        parser.error("which program?")
    for option in arguments.options:
        if "=" not in option:
            parser.error(f"-o {option}: an option has a value, as in -o seed=7; {SIM} lists them")
    options = dict(option.partition("=")[::2] for option in arguments.options)
    try:
        python, environment = build.for_script(arguments.python, options)
    except build.UnusableError as error:
        parser.error(str(error))
    os.execve(python, [str(python), *arguments.program], environment)


if __name__ == "__main__":
    main()
