"""Writes, copies and reads tensors that do not fit under the limit, on several streams, and compares every byte.

Usage: contents.py LIMIT FACTOR OPERATIONS SEED. LIMIT in bytes; the tensors take FACTOR times as much. It needs no
kernel, only copies, so a simulated device can do it. Answers with the operations after which contents differed.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

import torch
from answer import answer
from torch import Tensor

_MIB = 1 << 20


@dataclass
class Kept:
    """A tensor on the device, what it has to hold, and the stream that wrote or read it last."""

    device: Tensor
    expected: Tensor
    stream: torch.cuda.Stream


def _pattern(nbytes: int, seed: int) -> Tensor:
    """Bytes that differ between seeds, and from place to place."""
    return torch.arange(nbytes // 8).mul_(0x9E3779B97F4A7C15 - (1 << 64)).add_(seed).view(torch.uint8)


class Contents:
    """The tensors, and random operations on them."""

    def __init__(self, limit: int, factor: float, seed: int) -> None:
        self.random = random.Random(seed)
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.sizes = [size for size in (1 * _MIB, 2 * _MIB, 3 * _MIB, 8 * _MIB, 40 * _MIB) if size * 8 <= limit]
        self.versions = 0
        self.kept: list[Kept] = []
        total = 0
        while total < limit * factor:
            self.kept.append(self._new(self.random.choice(self.sizes)))
            total += self.kept[-1].device.nbytes
        self.total = total

    def _fresh(self, nbytes: int) -> Tensor:
        self.versions += 1
        return _pattern(nbytes, self.versions)

    def _new(self, nbytes: int) -> Kept:
        stream = self.random.choice(self.streams)
        with torch.cuda.stream(stream):
            expected = self._fresh(nbytes)
            device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            device.copy_(expected)
        return Kept(device, expected, stream)

    def _on(self, *kept: Kept) -> torch.cuda.Stream:
        """A stream that has waited for the streams that used the tensors last."""
        stream = self.random.choice(self.streams)
        for each in kept:
            if each.stream != stream:
                stream.wait_stream(each.stream)
                each.device.record_stream(stream)
                each.stream = stream
        return stream

    def write(self) -> bool:
        """Overwrites all or a part, asynchronously from pinned memory."""
        kept = self.random.choice(self.kept)
        begin = self.random.choice((0, 0, kept.device.nbytes // 2))
        fresh = self._fresh(kept.device.nbytes - begin).pin_memory()
        with torch.cuda.stream(self._on(kept)):
            kept.device[begin:].copy_(fresh, non_blocking=True)
        kept.expected[begin:].copy_(fresh)
        return True

    def copy(self) -> bool:
        """Copies one tensor over another of its size."""
        source = self.random.choice(self.kept)
        target = self.random.choice([each for each in self.kept if each.device.nbytes == source.device.nbytes])
        if source is not target:
            with torch.cuda.stream(self._on(source, target)):
                target.device.copy_(source.device)
            target.expected.copy_(source.expected)
        return True

    def replace(self) -> bool:
        """Frees a tensor while the device may still work on it, and makes another one of its size."""
        index = self.random.randrange(len(self.kept))
        nbytes = self.kept[index].device.nbytes
        del self.kept[index]
        self.kept.append(self._new(nbytes))
        return True

    def read(self) -> bool:
        return self.is_right(self.random.choice(self.kept))

    def reclaim(self) -> bool:
        torch.lms.reclaim("cuda", self.random.choice(self.sizes) * 4)
        return True

    def is_right(self, kept: Kept) -> bool:
        with torch.cuda.stream(self._on(kept)):
            return bool(torch.equal(kept.device.cpu(), kept.expected))


def main(limit: int, factor: float, operations: int, seed: int) -> None:
    torch.cuda.init()
    torch.lms.enable("cuda", limit=limit, min_size=_MIB)
    contents = Contents(limit, factor, seed)
    choices = [contents.write, contents.copy, contents.replace, contents.read, contents.read, contents.reclaim]
    wrong = [count for count in range(operations) if not contents.random.choice(choices)()]
    wrong += [operations + index for index, kept in enumerate(contents.kept) if not contents.is_right(kept)]
    answer({"wrong": wrong, "tensor_bytes": contents.total, "statistics": torch.lms.stats("cuda")})


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
