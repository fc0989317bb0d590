"""``python -m torch.lms top``, and the memory that it reads. tests/tool/test_top.py has what needs no PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch
from common import MIB, in_fork
from support import away, data, enable, same, stat
from torch.lms import _top


def own() -> Any:
    [sample] = [sample for (pid, _), sample in _top.samples().items() if pid == os.getpid()]
    return sample


def published() -> dict[str, int]:
    found = own().values
    stats = torch.lms.stats("cpu")
    assert found == {name: stats[name] for name in found}, (found, stats)
    return found


def check_what_is_published_is_what_the_statistics_say() -> None:
    assert not [pid for pid, _ in _top.samples() if pid == os.getpid()]
    enable(8 * MIB)
    expected = data(4)
    tensor = away(expected)
    assert published()["out.bytes"] >= 4 * MIB and own().device == "cpu"
    same(tensor, expected)
    assert published()["in.bytes"] >= 4 * MIB
    torch.lms.set_limit("cpu", 4 * MIB)
    assert published()["limit_bytes"] == 4 * MIB

    def child() -> None:
        before = published()["out.bytes"]
        same(away(expected), expected)
        assert published()["out.bytes"] > before

    before = stat("out.bytes")
    in_fork(child)
    assert published()["out.bytes"] == before


def check_a_program_that_closes_all_descriptors() -> None:
    enable(8 * MIB)
    expected = data(4)
    tensor = away(expected)
    os.closerange(3, 256)
    assert not [pid for pid, _ in _top.samples() if pid == os.getpid()]
    same(tensor, expected)
    same(away(expected), expected)
    in_fork(lambda: same(away(expected), expected))


def check_top() -> None:
    enable(8 * MIB)
    tensors = [away(data(2, seed=index)) for index in range(6)]
    words = [sys.executable, "-m", "torch.lms", "top", "--once", "--interval", "0.1"]
    text, rows = (
        subprocess.run([*words, *more], stdout=subprocess.PIPE, timeout=120, check=True).stdout
        for more in ([], ["--json"])
    )
    [row] = [row for row in json.loads(rows) if row["pid"] == os.getpid()]
    assert (row["limit"], row["device"], row["in_rate"], row["stall"]) == (8 * MIB, "cpu", 0.0, 0.0), row
    assert row["away"] >= 12 * MIB and row["allocated"] >= 12 * MIB and len(tensors) == 6, row
    assert "run_checks.py" in row["command"], row
    # Other processes' rows set the widths of the columns.
    [columns] = [line.split() for line in text.decode().splitlines() if line.split()[:1] == [str(os.getpid())]]
    assert columns[1:4] == ["cpu", "8", "MiB"], text
