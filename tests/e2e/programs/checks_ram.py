"""limit="auto": programs in a memory control group. tests/pager/ram.cc has what needs no PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from checks_launching import run
from common import MIB, Group, directory, entering, group_of, raises
from support import data, enable, python, same, stat

# Trains: a step, and a line with the statistics, for each line that it is given, which says what else to do.
PROGRAM = """
import hashlib, json, sys
import numpy, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1536, 1536) for _ in range(12)))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
inputs, losses, beside = torch.randn(64, 1536), [], []
for line in sys.stdin:
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if line == "grow\\n":
        beside += [numpy.ones(8 << 17) for _ in range(4)]  # half of the reserve: it may be faster than the disk
    elif line == "shrink\\n":
        beside.clear()
    print(json.dumps(torch.lms.stats("cpu")), flush=True)
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy())
print(losses, digest.hexdigest())
"""
TENSORS = 432 * MIB  # at once, at least
BESIDE = 192 * MIB


class Trainer:
    """A process of its own that runs PROGRAM."""

    def __init__(self, group: Group | None, *launcher: str, **environment: str) -> None:
        self.steps: list[str] = []
        self.process = subprocess.Popen(
            entering(group, sys.executable, *launcher, "-c", PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "1", **environment},
        )

    def step(self, what: str = "") -> dict[str, int]:
        """The statistics after it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        self.steps.append(what)
        stats: dict[str, int] = json.loads(line)
        return stats

    def step_until(self, limit_is_right: Callable[[int], bool], what: str = "") -> int:
        """The limit, when it is as it has to come to be."""
        deadline = time.monotonic() + 60
        limit = self.step(what)["limit_bytes"]
        while not limit_is_right(limit):
            assert time.monotonic() < deadline, limit / MIB
            limit = self.step()["limit_bytes"]
        return limit

    def end(self) -> str:
        """The losses, and a digest of the parameters."""
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, self.process.returncode
        return out

    def same_as_without_lms(self) -> None:
        plain = Trainer(None)
        for what in self.steps:
            plain.step(what)
        assert self.end() == plain.end()


def check_a_program_in_a_group_just_trains() -> None:
    with group_of(512 * MIB) as group:
        trainer = Trainer(group, "-m", "torch.lms", "run", "--device", "cpu")
        stats = [trainer.step() for _ in range(6)]
        trainer.same_as_without_lms()
    assert all(each["limit_bytes"] < TENSORS and each["allocated_bytes.peak"] > TENSORS for each in stats), stats
    assert stats[-1]["out.bytes"] > 0


def check_a_group_that_changes_and_what_is_beside() -> None:
    with group_of(640 * MIB) as group:
        trainer = Trainer(group, TORCH_LMS="cpu:limit=auto")
        trainer.step()
        before = trainer.step()["limit_bytes"]
        for _ in range(6):
            trainer.step("grow")
        beside = trainer.step_until(lambda limit: limit < before - BESIDE // 2)
        after = trainer.step_until(lambda limit: limit > beside + BESIDE // 2, "shrink")
        # The kernel of version 1 refuses while more is used, that of version 2 would kill, so in steps.
        for nbytes in range(640 * MIB, 447 * MIB, -8 * MIB):
            lower(group, nbytes)
            time.sleep(0.1)
        trainer.step_until(lambda limit: limit < max(before, after) - BESIDE // 2)
        trainer.same_as_without_lms()


def lower(group: Group, nbytes: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            group.limit(nbytes)
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def check_a_group_that_is_too_small_is_an_error() -> None:
    # torch has 136 MiB or more beside that, and less than 200.
    code = "import torch; beside = bytearray(b'x') * (120 << 20); torch.lms.enable('cpu', limit='auto')"
    with group_of(320 * MIB) as group:
        done = subprocess.run(
            entering(group, sys.executable, "-c", code),
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "limit 'auto' finds no memory for tensors in the control group" in last, done
    assert f"of {320 * MIB} bytes" in last, last


def check_where_it_goes() -> None:
    with directory() as folder:
        os.environ["TMPDIR"] = folder
        torch.lms.enable("cpu", limit="auto")
        kept = [data(1, seed=index) for index in range(8)]
        assert torch.lms.reclaim("cpu") >= 8 * MIB
        links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists() or path.is_symlink()]
        assert any(link.startswith(folder) for link in links), links
        same(kept, [data(1, seed=index) for index in range(8)])
        enable(4 * MIB)  # a limit ends it
        time.sleep(0.3)
        assert torch.lms.limit("cpu") == 4 * MIB == stat("limit_bytes")
        torch.lms.enable("cpu", limit=" Auto ")
        assert torch.lms.limit("cpu") > 64 * MIB
        torch.lms.disable("cpu")
        same(kept, [data(1, seed=index) for index in range(8)])


def check_wrong_uses() -> None:
    with directory() as folder:
        for error, options, words in (
            (ValueError, {"share": True}, ("share", "limit 'auto'")),
            (ValueError, {"store": "/dev/shm"}, ("store", "/dev/shm", "in memory")),
        ):
            with raises(error, *words):
                torch.lms.enable("cpu", limit="auto", **options)
            assert not torch.lms.is_enabled("cpu")
        os.environ["LMS_SHARE"] = folder
        code = "import torch; print(torch.lms.limit('cpu'))"
        assert int(run(["-c", code], folder, ["--device", "cpu"]).stdout) > 64 * MIB
        assert int(run(["-c", code], folder, ["--device", "cpu", "--limit", "auto"]).stdout) > 64 * MIB
        for value, word in (
            ("cpu:limit=auto,share", "limit 'auto'"),
            ("cpu:limit=auto,per_node", "per_node needs a limit"),
            ("cpu", "'auto' for what there is"),
        ):
            done = python("import torch", TORCH_LMS=value)
            assert done.returncode == 1 and word in done.stderr.splitlines()[-1], done


def check_forked_workers() -> None:
    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> torch.Tensor:
            return data(0.5, seed=index) * 2

    torch.lms.enable("cpu", limit="auto")
    kept = [data(1, seed=index) for index in range(8)]
    for batch, tensors in enumerate(torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2)):
        same(tensors, torch.stack([data(0.5, seed=4 * batch + index) * 2 for index in range(4)]))
    same(kept, [data(1, seed=index) for index in range(8)])
