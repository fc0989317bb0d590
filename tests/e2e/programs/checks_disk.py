"""Stores in files: several directories, disks that fill up, fail or give back something else. tests/pager/disk.cc has
what needs no PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from checks_launching import run
from common import MIB, directory, files_in, raises, spoil
from skip import Skip
from support import away, data, enable, same, stat

# Trains with the arguments that the environment has; prints what there is in the end.
PROGRAM = """
import hashlib, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
inputs = torch.randn(64, 768)
for _ in range(6):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
print(hashlib.sha256(b"".join(bytes(p.detach().numpy()) for p in model.parameters())).hexdigest())
stats = torch.lms.stats("cpu") if hasattr(torch, "lms") and torch.lms.is_enabled("cpu") else {}
print(stats.get("out.bytes", 0), stats.get("store_bytes.peak", 0))
"""


def trained(folder: str, **environment: str) -> tuple[str, int, str]:
    """The parameters' hash, the bytes that left, and what was said on stderr."""
    result = run(["-c", PROGRAM], folder, **environment)
    assert result.returncode == 0, result
    digest, moved, _ = result.stdout.split()
    return digest, int(moved), result.stderr


def check_several_directories() -> None:
    with directory() as first, directory() as second:
        enable(8 * MIB, store=[first, Path(second)])
        expected = [data(4, i) for i in range(64)]
        tensors = [tensor.clone() for tensor in expected]
        same(tensors, expected)
        assert files_in(first) and files_in(second), (files_in(first), files_in(second))
        assert os.listdir(first) == os.listdir(second) == []
        enable(8 * MIB, store=(second,))  # another store: what is in the first stays there until it comes back
        same([tensor * 2 for tensor in tensors], [tensor * 2 for tensor in expected])


def check_several_directories_without_touching_the_program() -> None:
    with directory() as first, directory() as second:
        stock, moved, _ = trained(first)
        assert moved == 0
        for variable in (
            f"cpu:limit=24MiB,store={first}:{second}",
            f"cpu:limit=24MiB,store={first},no_checksum",
            f"cpu:limit=24MiB,store={second}",
        ):
            digest, moved, said = trained(first, TORCH_LMS=variable)
            assert digest == stock and moved > 24 * MIB and said == "", (variable, digest, moved, said)
        program = Path(first, "program.py")
        program.write_text(PROGRAM)
        words = ["-m", "torch.lms", "run", "--device", "cpu", "--limit", "24MiB", "--store", first, "--store", second]
        result = run([*words, "--no-checksum", str(program)], second)
        assert result.stdout.split()[0] == stock and result.stderr == "", result


def check_wrong_directories() -> None:
    with directory() as folder:
        for store, kind, words in (
            ([], ValueError, ("store: an empty list",)),
            ([folder, "/nowhere"], ValueError, ("'/nowhere' is not a directory",)),
            ([folder, 7], TypeError, ("store: expected None, a str, an os.PathLike or a list", "got int")),
            ({folder}, TypeError, ("got set",)),
        ):
            with raises(kind, *words):
                enable(8 * MIB, store=store)
        with raises(TypeError, "checksum: "):
            enable(8 * MIB, store=folder, checksum="no")
        os.mkdir(f"{folder}/a\nb")
        with raises(ValueError, "line break"):
            enable(8 * MIB, store=f"{folder}/a\nb")
        assert not torch.lms.is_enabled("cpu")


@contextmanager
def mounted(folder: str, *words: str) -> Iterator[None]:
    done = subprocess.run(["mount", *words, folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Skip(f"needs the right to mount ({' '.join(words)}): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def check_a_directory_that_is_full_is_left_out() -> None:
    with directory() as small, directory() as large:
        stock, _, _ = trained(large)
        with mounted(small, "-t", "tmpfs", "-o", "size=24m", "tmpfs"):
            digest, moved, said = trained(large, TORCH_LMS=f"cpu:limit=24MiB,store={small}:{large}")
        assert digest == stock and moved > 24 * MIB
        assert f"'{small}' cannot be enlarged: No space left" in said and said.count("\n") == 1, said
        assert "left out while other directories have room" in said, said


def check_a_disk_that_fails_is_left_out() -> None:
    # A file system whose disk, a sparse file, has no place for what is written: a real error of the device.
    if shutil.which("mkfs.ext4") is None:
        raise Skip("needs mkfs.ext4")
    with directory() as parent, directory() as good:
        stock, _, _ = trained(good)
        backing, failing = Path(parent, "backing"), Path(parent, "failing")
        backing.mkdir()
        failing.mkdir()
        with mounted(str(backing), "-t", "tmpfs", "-o", "size=40m", "tmpfs"):
            disk = backing / "disk"
            with disk.open("wb") as file:
                file.truncate(512 * MIB)
            made = subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", disk], capture_output=True, check=False)
            assert made.returncode == 0, made
            with mounted(str(failing), "-o", "loop,errors=continue", str(disk)):
                (backing / "ballast").write_bytes(bytes(28 * MIB))
                digest, moved, said = trained(good, TORCH_LMS=f"cpu:limit=24MiB,store={failing}:{good}")
        assert digest == stock and moved > 24 * MIB
        assert f"the host store in '{failing}' cannot be " in said and said.count("\n") == 1, said


def check_contents_that_are_not_what_was_written() -> None:
    expected = [data(1, i) for i in range(4)]
    for checksum in (True, False):
        with directory() as folder:
            enable(64 * MIB, store=folder, checksum=checksum)
            tensors = [away(tensor) for tensor in expected]
            spoil(folder, 4)
            if not checksum:
                assert not any(torch.equal(tensor, wanted) for tensor, wanted in zip(tensors, expected, strict=True))
                continue
            for tensor in tensors:
                with raises(RuntimeError, "wrong checksum", folder, "a block of 1048576 bytes"):
                    tensor + 1
            assert stat("store_failures") >= 4
            del tensor, tensors
            same([away(wanted) + 1 for wanted in expected], [wanted + 1 for wanted in expected])  # the rest goes on


def descend(tensor: torch.Tensor) -> None:
    """A step of an optimizer."""
    parameter = torch.nn.Parameter(tensor)
    parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([parameter], lr=1, foreach=False).step()


def check_every_use_of_what_was_spoilt_is_an_error() -> None:
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 6):
        raise Skip("needs PyTorch 2.6, whose storages can refuse access: before, some of these end the process")
    other = data(1)
    uses: list[Callable[[torch.Tensor], object]] = [
        lambda t: t + 1,
        lambda t: t.add_(1),
        lambda t: t.fill_(0),
        lambda t: t.copy_(other),
        lambda t: other.copy_(t),
        lambda t: torch.add(other, 1, out=t),
        lambda t: t.sum(),
        lambda t: t[0].item(),
        lambda t: str(t),
        lambda t: torch.equal(t, other),
        lambda t: t.view(512, 512) @ torch.ones(512, 2),
        lambda t: t.clone().share_memory_(),
        lambda t: t.numpy(),
        lambda t: torch.lms.pin(t).__enter__(),
        lambda t: torch.nn.functional.linear(torch.ones(2, 512), t.view(512, 512).requires_grad_()).sum().backward(),
        descend,
    ]
    with directory() as folder:
        enable(64 * MIB, store=folder)
        tensors = [away(data(1, i)) for i in range(len(uses))]
        spoil(folder, len(uses))
        for index, use in enumerate(uses):
            for _ in range(2):
                with raises(RuntimeError, "wrong checksum", folder, "a block of 1048576 bytes"):
                    use(tensors[index])
        good = data(1, 99)
        same(away(good) + other * 0, good)  # the rest goes on
