"""ci/gpu's measurement of copies (bandwidth.py, whose arguments these are) by the clock of the simulated GPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "ci/gpu/programs"))

import bandwidth

if __name__ == "__main__":
    simulator = ctypes.CDLL("libcuda.so.1")
    simulator.sim_now.restype = ctypes.c_uint64
    bandwidth.clock = lambda: simulator.sim_now() / 1e9
    bandwidth.main(*map(int, sys.argv[1:4]))
