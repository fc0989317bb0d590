"""Processes that share a budget of RAM. tests/pager/sharing.cc has what needs no PyTorch."""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import MIB, Group, raises
from support import data, enable, models, python, same, stat
from torch.lms import _top

BUDGET = 120 * MIB  # and the model needs 117 of managed tensors
STEPS = 3  # in a phase
UNMANAGED = 3 * MIB  # of small tensors and an operation's own buffers, while a process trains


@contextmanager
def meeting_point() -> Iterator[str]:
    """A folder, in which the processes also meet."""
    folder = tempfile.mkdtemp()
    try:
        os.environ["LMS_SHARE"] = str(Path(folder, "meet"))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a process that still shares makes its file there anew


def anonymous_bytes(pid: int) -> int:
    """RAM that is no file's."""
    with open(f"/proc/{pid}/status") as file:
        [kib] = [line.split()[1] for line in file if line.startswith("RssAnon:")]
    return int(kib) * 1024


def digests(trainer: Any) -> list[str]:
    return [hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for tensor in trainer.tensors()]


class Worker:
    """A forked process that trains when it is told to."""

    def __init__(self, store: str, share: Any, limit: int | None = BUDGET) -> None:
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=self._run, args=(other, store, share, limit))
        self.process.start()
        other.close()
        self.own = self.connection.recv()

    @staticmethod
    def _run(connection: Any, store: str, share: Any, limit: int | None) -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the check
        if limit is not None:
            torch.lms.enable("cpu", limit=limit, store=store, share=share)
        trainer = models().make("transformer")
        losses = [trainer.step(), trainer.step()]
        if limit is not None:
            torch.lms.reclaim("cpu")
        # What the process has besides managed tensors.
        connection.send(anonymous_bytes(os.getpid()) - stat("device_bytes.current"))
        while (steps := connection.recv()) != 0:
            losses += [trainer.step() for _ in range(steps)]
            connection.send(torch.lms.stats("cpu"))
        connection.send((losses, digests(trainer)))

    def begin(self, steps: int) -> None:
        self.connection.send(steps)

    def end(self) -> dict[str, int]:
        assert self.connection.poll(120), "it hangs"
        answer: dict[str, int] = self.connection.recv()
        return answer

    def result(self) -> tuple[list[float], list[str]]:
        """The losses of all steps, and what the tensors hold."""
        self.connection.send(0)
        answer: tuple[list[float], list[str]] = self.connection.recv()
        self.process.join()
        return answer


def phases_that_alternate(count: int) -> None:
    """`count` processes, of which some work and some do not, in half to a quarter of what they need together."""
    with meeting_point() as store:
        workers, group = [Worker(store, "phases") for _ in range(count)], Group()
        pids = [worker.process.pid for worker in workers if worker.process.pid is not None]
        own = sum(worker.own for worker in workers)
        for pid in pids:
            group.add(pid)
        # Of their own they may write to every page that they have from their parent.
        group.limit(own + int(BUDGET * 1.03) + count * UNMANAGED)
        most = held = 0

        def sample() -> None:
            nonlocal most, held
            most = max(most, sum(map(anonymous_bytes, pids)) - own)
            pagers = [sample for (pid, _), sample in _top.samples().items() if pid in pids]
            held = max(held, sum(pager.values["device_bytes.current"] for pager in pagers))

        shares = []
        for phase in range(4):
            busy = [worker for index, worker in enumerate(workers) if (index + phase) % 2 == 0 or phase == 3]
            for worker in busy:
                worker.begin(STEPS)
            waiting = list(busy)
            while waiting:
                sample()
                time.sleep(0.005)
                for worker in waiting[:]:
                    if worker.connection.poll():
                        shares.append(worker.end()["share.bytes"])
                        waiting.remove(worker)
        results = [worker.result() for worker in workers]
        assert [worker.process.exitcode for worker in workers] == [0] * count
        group.remove()
    # The pages are read one after the other, while blocks go from one process to another.
    assert BUDGET / 2 <= held <= BUDGET * 1.03, held / MIB
    assert BUDGET / 2 <= most <= BUDGET * 1.03 + count * UNMANAGED, (most / MIB, own / MIB)
    trainer, expected = models().make("transformer"), []
    for losses, tensors in sorted(results, key=lambda result: len(result[0])):
        expected += [trainer.step() for _ in losses[len(expected) :]]
        assert (losses, tensors) == (expected, digests(trainer))


def check_two_that_take_turns() -> None:
    phases_that_alternate(2)


def check_three_of_which_some_work() -> None:
    phases_that_alternate(3)


def check_four_of_which_some_work() -> None:
    phases_that_alternate(4)


def check_terms() -> None:
    share = torch.lms.Share
    with meeting_point(), raises(TypeError, "share", "bool", "int"):
        enable(share=1)
    for kind, wrong, words in (
        (ValueError, "", ("empty name",)),
        (ValueError, "a/b", ("a/b", "letters")),
        (TypeError, share(7), ("name", "int")),
        (ValueError, share("a", weight=0), ("weight of 0",)),
        (ValueError, share("a", weight=-1), ("weight of -1",)),
        (ValueError, share("a", weight=float("nan")), ("weight of nan",)),
        (TypeError, share("a", weight="2"), ("weight", "str")),
        (ValueError, share("a", minimum="2 apples"), ("minimum", "2 apples")),
        (ValueError, share("a", minimum="1GiB"), ("minima",)),
        (ValueError, share("a", priority=5000), ("priority of 5000",)),
        (TypeError, share("a", priority=0.5), ("priority", "float")),
        (ValueError, share("a", group="no such group"), ("no such group",)),
        (TypeError, share("a", group=7), ("group", "int")),
    ):
        with meeting_point(), raises(kind, "share", *words):
            enable(share=wrong)
        assert not torch.lms.is_enabled("cpu")
    with meeting_point() as folder:
        os.environ["LMS_SHARE"] = str(Path(folder, "no", "such"))
        with raises(OSError, "LMS_SHARE", folder):
            enable(share="a")
    with meeting_point():
        enable(share="a")
        _refused_in_a_new_process()
        enable(32 * MIB)
        assert stat("share.processes") == 0


def _refused_in_a_new_process() -> None:
    code = "import torch; torch.lms.enable('cpu', limit='32MiB', share='a')"
    done = python(code)
    assert done.returncode == 1 and "ValueError" in done.stderr and "give the same limit" in done.stderr, done.stderr


def check_the_environment() -> None:
    code = """
import torch
x = [torch.ones(1 << 18) for _ in range(100)]
print({name: value for name, value in torch.lms.stats("cpu").items() if name.startswith("share.")})
"""
    with meeting_point() as folder:
        for request in (
            "cpu:limit=64MiB,share",
            f"cpu:limit=64MiB,share=job42,weight=2,minimum=8MiB,priority=-1,store={folder}",
        ):
            done = python(code, TORCH_LMS=request)
            assert "'share.budget_bytes': 67108864" in done.stdout, done
        assert "'share.budget_bytes': 0" in python(code, TORCH_LMS="cpu:limit=64MiB,share=0").stdout
        words = ["--limit", "64MiB", "--device", "cpu", "--share-name", "job42", "--weight", "0.5", "--minimum=8MiB"]
        for given in ([*words[:4], "--share"], words):
            launched = [sys.executable, "-m", "torch.lms", "run", *given, "-c", code]
            done = subprocess.run(launched, capture_output=True, text=True, timeout=120, check=False)
            assert "'share.budget_bytes': 67108864" in done.stdout, done
        for request, word in (
            ("cpu:limit=1GiB,weight=2", "weight is a part of share"),
            ("cpu:limit=1GiB,share=", "share takes"),
            ("cpu:limit=1GiB,share,weight=two", "'two' is no weight"),
            ("cpu:limit=1GiB,share,weight=0", "weight of 0"),
            ("cpu:limit=1GiB,share,per_node", "leave one out"),
            ("cpu:limit=1GiB,share,minimum=2GiB", "minimum of 2GiB is more"),
            ("cpu:limit=1GiB,share,group=no-such-group-here", "no group"),
            ("cpu:limit=1GiB,share=0,weight=2", "weight is a part of it"),
            ("cpu:limit=1GiB,share=a b", "'a b' is no name"),
        ):
            done = python("import torch", TORCH_LMS=request)
            assert done.returncode == 1 and word in done.stderr.splitlines()[-1], (request, done.stderr)


def check_who_is_killed_gives_its_share_back() -> None:
    with meeting_point() as store:
        first, second = Worker(store, "killed"), Worker(store, "killed")
        for worker in (first, second):
            worker.begin(1000)
        time.sleep(1)
        assert first.process.pid is not None
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.join()
        third = Worker(store, "killed")
        third.begin(STEPS)
        assert third.end()["share.processes"] == 2
        second.process.kill()
        second.process.join()
        third.begin(STEPS)
        stats = third.end()
        assert (stats["share.processes"], stats["share.budget_bytes"]) == (1, BUDGET) and stats[
            "share.bytes"
        ] > BUDGET // 2, stats
        losses, _ = third.result()
        trainer = models().make("transformer")
        same(losses, [trainer.step() for _ in losses])


def check_workers_of_a_data_loader() -> None:
    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> torch.Tensor:
            return data(0.5, seed=index) * 2

    with meeting_point() as store:
        enable(16 * MIB, store=store, share="loader")
        kept = [data(1, seed=index) for index in range(24)]
        for batch, tensors in enumerate(torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2)):
            same(tensors, torch.stack([data(0.5, seed=4 * batch + index) * 2 for index in range(4)]))
        same(kept, [data(1, seed=index) for index in range(24)])
        deadline = time.monotonic() + 20
        while stat("share.processes") != 1:  # it has looked since the workers have ended
            assert time.monotonic() < deadline
            time.sleep(0.01)


def check_switching_it_off() -> None:
    with meeting_point() as store:
        enable(16 * MIB, store=store, share="off")
        kept = [data(1, seed=index) for index in range(24)]
        torch.lms.disable("cpu")
        same(kept, [data(1, seed=index) for index in range(24)])
        more = [data(1, seed=index) for index in range(24)]
        del kept, more
        deadline = time.monotonic() + 20
        while os.listdir(os.environ["LMS_SHARE"]):  # nothing is left
            assert time.monotonic() < deadline
            time.sleep(0.01)


def check_top_shows_who_shares() -> None:
    with meeting_point() as store:
        worker = Worker(store, "top")
        enable(BUDGET, store=store, share="top")
        kept = data(8)
        worker.begin(STEPS)
        worker.end()
        words = [sys.executable, "-m", "torch.lms", "top", "--once", "--interval", "0.1"]
        text, found = (
            subprocess.run([*words, *more], stdout=subprocess.PIPE, timeout=120, check=True).stdout.decode()
            for more in ([], ["--json"])
        )
        rows = {row["pid"]: row for row in json.loads(found)}
        own, other = rows[os.getpid()], rows[worker.process.pid]
        assert own["budget"] == other["budget"] == "cpu-top", (own, other)
        # Who worked has what the other did not use.
        assert other["share"] > BUDGET // 2 and own["share"] + other["share"] <= BUDGET, (own, other)
        assert "BUDGET" in text and "cpu-top" in text, text
        worker.result()
        same(kept, data(8))
