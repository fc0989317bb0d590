"""The simulated CUDA of tests/cuda/simulator in place of a device: built from its sources when it is asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

_MEMORY = 512 << 20  # bytes of the simulated device


def environment(root: Path, cuda: str, build: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a torch that is built for CUDA `cuda`, such as 13.0, finds the simulated device."""
    spec = importlib.util.spec_from_file_location("simulator_build", root / "tests/cuda/simulator/build.py")
    assert spec is not None and spec.loader is not None
    simulator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulator)
    folder = simulator.libraries(build)
    # Only CUDA's own calls touch device memory here, so the device's addresses need not be real ones.
    options = {"memory": _MEMORY, "host_access": 0}
    found: dict[str, str] = simulator.environment(folder, int(cuda.split(".")[0]), options, inherited)
    return found
