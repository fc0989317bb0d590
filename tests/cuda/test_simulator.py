"""Runs every case of simulator_units.cc: the simulated CUDA notices what a device would suffer from.

They run under AddressSanitizer; `-m ""` runs them plain and under ThreadSanitizer, too.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cases
from presets import Builds

HERE = Path(__file__).parent
SOURCE = HERE / "simulator_units.cc"

# What the cases need to know of the machine before CUDA starts.
OPTIONS: dict[str, dict[str, object]] = {
    "page_locked_memory_is_limited_and_registered_once": {"pinned_limit": 3 << 19},
    "there_may_be_no_device": {"devices": 0},
    "a_device_may_lack_virtual_memory_management": {"vmm": 0},
    "an_old_driver_lacks_functions": {"driver_version": 10010},
    "calls_fail_as_the_environment_says": {"fail": "cuMemAlloc:1:2,cuMemAlloc:3:999"},
    "devices_have_their_own_memory": {"devices": 2},
}
# These look at an order that only the deterministic schedule promises.
DETERMINISTIC = {
    "a_missing_event_shows",
    "a_dropped_wait_shows",
    "an_access_that_changes_under_work_loses_the_device",
    "an_early_answer_shows",
    "a_lazy_schedule_runs_what_is_waited_for_alone",
    "a_seed_repeats_the_schedule",
    "events_tell_what_is_over",
    "memory_that_is_no_longer_page_locked_cannot_be_copied",
    "pageable_copies_are_over_at_once_and_pinned_ones_are_not",
}
# ThreadSanitizer gives up in a child of a process with threads.
WITHOUT_THREAD_SANITIZER = {"a_child_process_has_no_cuda"}


def parameters() -> list[Any]:
    """(flavour of the build, mode of the schedule, case)"""
    every = cases.names(SOURCE)
    threaded = [case for case in every if case not in DETERMINISTIC]
    sanitized = [case for case in threaded if case not in WITHOUT_THREAD_SANITIZER]
    return [
        *(pytest.param("address", "deterministic", case) for case in every),
        *(pytest.param("address", "threads", case) for case in threaded),
        *(pytest.param("plain", "deterministic", case, marks=pytest.mark.release) for case in every),
        *(pytest.param("plain", "threads", case, marks=pytest.mark.release) for case in threaded),
        *(pytest.param("thread", "threads", case, marks=pytest.mark.release) for case in sanitized),
    ]


@pytest.mark.parametrize(("flavour", "mode", "case"), parameters())
def test_simulator_case(flavour: str, mode: str, case: str, builds: Builds, tmp_path: Path) -> None:
    options = {"mode": mode, "memory": 64 << 20, **OPTIONS.get(case, {})}
    variables = {f"SIM_CUDA_{name.upper()}": str(value) for name, value in options.items()}
    cases.run([builds.get(flavour, "simulator_units"), case], tmp_path, variables)


def test_unknown_options_are_refused(simulator: Callable[..., Path]) -> None:
    library = ctypes.CDLL(str(simulator() / "libcuda.so.1"))
    assert library.sim_set(b"queue", b"10") == 0
    assert library.sim_set(b"queue", b"many") == -1
    assert library.sim_set(b"memory", b"1") == -1  # too late
    assert library.sim_set(b"sample", b"100") == -1  # no power of two
    assert library.sim_set(b"speed", b"1") == -1


def test_functions_can_be_left_out(simulator: Callable[..., Path]) -> None:
    folder = simulator("plain", ("cuMemCreate", "cuMemMap"), releases=("12",))
    library = ctypes.CDLL(str(folder / "libcuda.so.1"))
    assert not hasattr(library, "cuMemCreate")
    assert hasattr(library, "cuMemUnmap")
    function = ctypes.c_void_p(1)
    status = ctypes.c_int(0)
    assert library.cuGetProcAddress_v2(b"cuMemMap", ctypes.byref(function), 12000, 0, ctypes.byref(status)) == 0
    assert (function.value, status.value) == (None, 1)


@pytest.mark.parametrize("release", ["10.1", "10.2", "11.0", "12", "13"])
def test_the_runtime_exports_all_symbols_with_their_version(simulator: Callable[..., Path], release: str) -> None:
    library = simulator() / f"libcudart.so.{release}"
    names = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = dict(re.findall(r" T (\w+)@@([\w.]+)$", names, re.MULTILINE))
    wanted = sys.modules["simulator_build"].runtime_symbols(release)
    assert len(wanted) > (400 if int(release.partition(".")[0]) >= 12 else 280)
    assert exported == dict.fromkeys(wanted, library.name)


def test_what_is_not_simulated_is_refused(simulator: Callable[..., Path]) -> None:
    library = ctypes.CDLL(str(simulator() / "libcudart.so.13"))
    assert library.cudaMalloc3D() == 801
    assert library.cudaGetLastError() == 801
    assert library.cudaGetLastError() == 0
