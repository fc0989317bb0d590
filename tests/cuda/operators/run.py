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

from lmsbuild import paths
from operators import build
from simulator import build as simulator_build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.program:
        parser.error("which program?")
    options = dict(option.partition("=")[::2] for option in arguments.options)
    folder = paths.cache_folder() / "simulated-gpu"
    folder.mkdir(parents=True, exist_ok=True)
    simulator = simulator_build.libraries(folder)
    base = simulator_build.environment(simulator, options=options)
    words = [str(arguments.python), *arguments.program]
    os.execve(words[0], words, build.environment(arguments.python, simulator, folder, base))


if __name__ == "__main__":
    main()
