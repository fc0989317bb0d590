"""Virtual time (simulator/clock.h): what takes how long, to the nanosecond, on a machine of round numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from predictions import timeline
from simulator import build as simulator_build

PROGRAM = Path(__file__).parent / "timed_programs" / "clock.py"
CASES = re.findall(r"^def ((?:a|collectives|copies|threads|what|without)_\w+)\(", PROGRAM.read_text(), re.MULTILINE)
MACHINE = """\
memory.bandwidth = 1e9
link.in = 1e9  # a comment
link.out = 0.5e9
link.latency = 1e-6
kernel.latency = 2e-6
host.operator = 3e-6
flops.float32 = 1e9
call.cuMemSetAccess = 10e-6
call.cuMemUnmap = 20e-6
"""


def _run(folder: Path, machine: str, simulated_cuda: Path, *words: object) -> subprocess.CompletedProcess[str]:
    file = folder / "machine.toml"
    file.write_text(machine)
    work = 0 if "without_work_only_numbers_move" in words else 1
    options = {"mode": "timed", "machine": file, "work": work, "memory": 64 << 20, "devices": 2}
    environment = simulator_build.environment(simulated_cuda, options=options, base=os.environ)
    if str(words[0]).startswith("threads"):
        environment["LD_PRELOAD"] = str(simulated_cuda / "libturns.so")
    command = [sys.executable, str(PROGRAM), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.mark.parametrize("case", CASES)
def test_clock(case: str, simulated_cuda: Path, tmp_path: Path) -> None:
    done = _run(tmp_path, MACHINE, simulated_cuda, case)
    assert done.returncode == 0, done.stderr


def test_the_table_is_read_and_summed(simulated_cuda: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    done = _run(tmp_path, MACHINE, simulated_cuda, "the_table_has_every_event", table)
    assert done.returncode == 0, done.stderr
    events = timeline.read(table, 0)
    copy = 1e-6 + (1 << 20) * 1e-9
    expected = {"kernel": 7e-6, "in": copy, "out": 0, "operator": 3e-6, "call": 0, "wait": copy + 7e-6, "worker": 0}
    assert timeline.busy_seconds(events) == pytest.approx(expected)
    assert {event.name for event in events if event.lane == "wait"} == {"cuStreamSynchronize"}
    assert [event.nbytes for event in events if event.lane == "in"] == [1 << 20]


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (MACHINE.replace("link.in =", "# link.in ="), "has no number link.in"),
        ("", "has no number memory.bandwidth"),
        (MACHINE.replace("link.in", "link.into"), "a number that nothing reads: link.into = 1e9"),
        (MACHINE.replace("call.cuMemUnmap", "call.cuMemUnnap"), "a number that nothing reads: call.cuMemUnnap = 20e-6"),
        (MACHINE.replace("20e-6", "20 us"), 'is not "name = number": call.cuMemUnmap = 20 us'),
        (MACHINE.replace("20e-6", "-20e-6"), "is not positive: call.cuMemUnmap = -20e-6"),
        (MACHINE.replace("link.in = 1e9", "link.in = 0"), "is not positive: link.in = 0"),
        (MACHINE + "[calls\n", 'is not "name = number": [calls'),
    ],
)
def test_a_machine_with_a_wrong_number_is_refused(
    machine: str, says: str, simulated_cuda: Path, tmp_path: Path
) -> None:
    done = _run(tmp_path, machine, simulated_cuda, CASES[0])
    assert done.returncode != 0 and says in done.stderr, done.stderr


def test_an_option_that_there_is_not_is_refused(simulated_cuda: Path) -> None:
    environment = simulator_build.environment(simulated_cuda, options={"device": 2}, base=os.environ)
    program = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode != 0 and "there is no option SIM_CUDA_DEVICE\n" in done.stderr, done.stderr


def test_what_is_close_is_drawn_as_one() -> None:
    assert timeline.merged([(3, 4), (0, 1), (1.5, 2), (4.1, 5)], 0.5) == [(0, 2), (3, 5)]
    assert timeline.merged([(0, 9), (1, 2), (9.5, 10)], 0.1) == [(0, 9), (9.5, 10)]


def test_every_stream_has_a_lane() -> None:
    def event(device: int, stream: int, lane: str) -> timeline.Event:
        return timeline.Event(device, stream, lane, 0, 1, 0, "")

    kernels = [event(0, 3, "kernel"), event(0, 5, "kernel"), event(0, 3, "kernel")]
    host = [event(timeline.HOST, thread, "operator") for thread in range(2)]
    found = timeline.parted([*kernels, *host, event(0, 7, "in")])
    assert found["kernels, stream 3"] == kernels[::2] and found["kernels, stream 5"] == kernels[1:2]
    assert found["host: PyTorch"] == host and len(found["copies in"]) == 1 and found["copies out"] == []
    found = timeline.parted([event(0, 3, "kernel"), event(1, 3, "kernel")])
    assert len(found["kernels, GPU 0, stream 3"]) == len(found["kernels, GPU 1, stream 3"]) == 1


def test_a_picture_is_drawn(tmp_path: Path, simulated_cuda: Path) -> None:
    table, picture = tmp_path / "table.csv", tmp_path / "picture.svg"
    done = _run(tmp_path, MACHINE, simulated_cuda, "the_table_has_every_event", table)
    assert done.returncode == 0, done.stderr
    timeline.draw([("one", timeline.read(table, 0), 1e-3)], "title", picture)
    assert "<svg" in picture.read_text()
