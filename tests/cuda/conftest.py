"""Builds the simulated CUDA, and environments in which programs find it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


def _load_build() -> ModuleType:
    # By path: the name `build` is taken elsewhere.
    spec = importlib.util.spec_from_file_location("simulator_build", HERE / "simulator" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


simulator_build = _load_build()


@pytest.fixture(scope="session")
def simulator(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """simulator(flavour="plain", without=()): the folder of the libraries, built if need be."""
    cache = pytestconfig.cache
    folder = Path(cache.mkdir("simulator")) if cache is not None else tmp_path_factory.mktemp("simulator")

    def build(flavour: str = "plain", without: Sequence[str] = ()) -> Path:
        return simulator_build.libraries(folder, flavour, without)

    return build


@pytest.fixture(scope="session")
def simulated_cuda(simulator: Callable[..., Path]) -> Path:
    """The folder of the libraries without sanitizers."""
    return simulator()
