"""What a program does with device memory, as operators/tape.h writes it, with names for tensors and times of their uses."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

MANAGED = 1 << 20  # bytes; smaller tensors stay where they are, as in ci/gpu/programs/side.py


@dataclass(eq=False)
class Tensor:
    """One allocation. Kernels are numbered from the tape's beginning, steps too."""

    nbytes: int
    born: int  # the kernel that follows its allocation
    uses: list[int] = field(default_factory=list)
    writes: set[int] = field(default_factory=set)
    dies: int | None = None  # the kernel that follows its release

    def next_use(self, kernel: int) -> int | None:
        """The first use at that kernel or later."""
        place = bisect.bisect_left(self.uses, kernel)
        return self.uses[place] if place < len(self.uses) else None


@dataclass(frozen=True)
class Kernel:
    name: str
    seconds: float
    reads: tuple[Tensor, ...]  # what has to be there, whether it is written too or not
    fresh: tuple[Tensor, ...]  # what it writes first


@dataclass(frozen=True)
class Tape:
    kernels: list[Kernel]
    allocated: list[list[Tensor]]  # by kernel: what is allocated before it
    freed: list[list[Tensor]]  # by kernel: what is freed before it
    steps: list[int]  # the kernel with which each step begins, and the end
    tensors: list[Tensor]

    def live_bytes(self) -> list[int]:
        """By kernel: what is allocated while it runs."""
        live, found = 0, []
        for allocated, freed in zip(self.allocated, self.freed, strict=True):
            live += sum(tensor.nbytes for tensor in allocated) - sum(tensor.nbytes for tensor in freed)
            found.append(live)
        return found

    def seconds_before(self) -> list[float]:
        """By kernel, and for the end: when it begins if nothing ever waits."""
        found = [0.0]
        for kernel in self.kernels:
            found.append(found[-1] + kernel.seconds)
        return found


def read(lines: Iterable[str]) -> Tape:
    """Tensors of fewer bytes than MANAGED are left out."""
    tensors: list[Tensor] = []
    by_address: dict[int, Tensor] = {}
    addresses: list[int] = []  # in order
    kernels: list[Kernel] = []
    allocated: list[list[Tensor]] = [[]]
    freed: list[list[Tensor]] = [[]]
    steps = [0]
    for line in lines:
        kind, *words = line.split()
        if kind == "alloc" and int(words[1]) >= MANAGED:
            address = int(words[0])
            tensor = by_address[address] = Tensor(int(words[1]), len(kernels))
            bisect.insort(addresses, address)
            tensors.append(tensor)
            allocated[-1].append(tensor)
        elif kind == "free" and int(words[0]) in by_address:
            address = int(words[0])
            tensor = by_address.pop(address)
            addresses.remove(address)
            tensor.dies = len(kernels)
            if tensor in allocated[-1]:
                allocated[-1].remove(tensor)  # no kernel saw it
            else:
                freed[-1].append(tensor)
        elif kind == "kernel":
            reads: dict[Tensor, None] = {}
            fresh: dict[Tensor, None] = {}
            for word in words[2:]:
                address = int(word[1:].partition(":")[0])
                place = bisect.bisect_right(addresses, address) - 1
                tensor = by_address[addresses[place]] if place >= 0 else None
                if tensor is None or address >= addresses[place] + tensor.nbytes:
                    continue
                (reads if tensor.uses else fresh)[tensor] = None
                if word[0] == "w":
                    tensor.writes.add(len(kernels))
            for tensor in (*reads, *fresh):
                tensor.uses.append(len(kernels))
            kernels.append(Kernel(words[1], int(words[0]) / 1e9, tuple(reads), tuple(fresh)))
            allocated.append([])
            freed.append([])
        elif kind == "step":
            steps.append(len(kernels))
    return Tape(kernels, allocated[:-1], freed[:-1], steps, tensors)
