"""Policies that have been published, as replay.Policy. Each names its source; where that leaves a choice, a comment says which.

What is not modelled, in favour of all of them: profiling, errors of prediction, fragmentation, and what their calls cost.
Positions repeat from step to step, so a use is known by its kernel's place in the step and its place among the operands.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from predictions.replay import Link, Policy, Replay
from predictions.tape import Kernel, Tape, Tensor

Place = tuple[int, int]  # of a use: the kernel in its step, the operand


def operands(kernel: Kernel) -> tuple[Tensor, ...]:
    return (*kernel.reads, *kernel.fresh)


@dataclass(frozen=True)
class Gap:
    """Between two uses of a tensor, in the step that stands for all. Kernels count from that step's beginning."""

    place: Place  # of the use before
    tensor: Tensor
    begin: int  # kernel
    end: int  # kernel; that of the next step has the step's length added
    seconds: float

    def hidden_seconds(self, link: Link) -> float:
        """What is left of it when the tensor has been copied out and in; below 0 where that takes longer."""
        return self.seconds - link.seconds_out(self.tensor.nbytes) - link.seconds_in(self.tensor.nbytes)


class Known(Policy):
    """Knows a step by heart."""

    def __init__(self, tape: Tape, limit: int, link: Link) -> None:
        super().__init__(tape, limit, link)
        self.first, self.last = tape.steps[-3], tape.steps[-2]  # the step that stands for all; another one follows
        self.length = self.last - self.first
        seconds = tape.seconds_before()
        self.begins = [moment - seconds[self.first] for moment in seconds[self.first :]]
        self.live = np.array(tape.live_bytes()[self.first : self.last], dtype=np.int64)

    def gaps(self) -> Iterator[Gap]:
        for number in range(self.first, self.last):
            for slot, tensor in enumerate(operands(self.tape.kernels[number])):
                following = tensor.next_use(number + 1)
                if following is not None and following > number + 1:
                    begin, end = number - self.first, following - self.first
                    yield Gap(
                        (begin, slot),
                        tensor,
                        begin,
                        end,
                        self.begins[min(end, len(self.begins) - 1)] - self.begins[begin + 1],
                    )

    def is_activation(self, gap: Gap) -> bool:
        """Made and used within the step."""
        return gap.tensor.born >= self.first and gap.end < self.length

    def kernel_at(self, moment: float) -> int:
        """The last kernel of the step, or of the next one, that begins no later."""
        return max(0, bisect.bisect_right(self.begins, moment) - 1)


class Ibm(Policy):
    """Large Model Support for PyTorch 1.x (IBM): pages out on demand, what was unused longest first, and pages in when an
    operation needs it. What left at this point of the step before is copied out ahead of need; its memory stays taken.
    """

    def __init__(self, tape: Tape, limit: int, link: Link) -> None:
        super().__init__(tape, limit, link)
        self._left: set[Place] = set()
        self._last: dict[Tensor, Place] = {}

    def victim(self, replay: Replay, kernel: int) -> Tensor | None:
        tensor = super().victim(replay, kernel)
        if tensor is not None and tensor in self._last:
            self._left.add(self._last[tensor])
        return tensor

    def after(self, replay: Replay, kernel: int) -> None:
        offset = self.offset(kernel)
        for slot, tensor in enumerate(operands(self.tape.kernels[kernel])):
            place = self._last[tensor] = (offset, slot)
            if place in self._left:
                replay.write_back(tensor)


class Vdnn(Known):
    """vDNN (Rhu et al., MICRO 2016), vDNN_all: what the backward pass needs again leaves at its last use of the forward pass,
    which ends when the copy has; a layer's backward pass fetches for the next. Each kernel is a layer here. Weights stay.
    """

    may_exceed = False

    def __init__(self, tape: Tape, limit: int, link: Link) -> None:
        super().__init__(tape, limit, link)
        step = tape.kernels[self.first : self.last]
        turn = self._turn = next((place for place, one in enumerate(step) if "backward" in one.name), self.length)
        self._gone: set[Tensor] = set()
        self._offloaded = {gap.place for gap in self.gaps() if self.is_activation(gap) and gap.begin < turn < gap.end}

    def victim(self, replay: Replay, kernel: int) -> Tensor | None:
        return None

    def _leaving(self, kernel: int) -> list[Tensor]:
        offset = self.offset(kernel)
        found = operands(self.tape.kernels[kernel])
        return [tensor for slot, tensor in enumerate(found) if (offset, slot) in self._offloaded]

    def before(self, replay: Replay, kernel: int) -> None:
        for tensor in self._leaving(kernel):
            if kernel not in tensor.writes and replay.state[tensor].resident:
                replay.write_back(tensor)
        if self.offset(kernel) < self._turn:
            return
        for later in self.tape.kernels[kernel + 1 : self.tape.steps[self._step + 1]]:
            layer = [tensor for tensor in later.reads if tensor in self._gone]
            for tensor in layer:
                if not replay.state[tensor].resident and replay.free_bytes() >= tensor.nbytes:
                    replay.fetch(tensor, self, kernel)
            if layer:
                return

    def after(self, replay: Replay, kernel: int) -> None:
        self._gone.difference_update(operands(self.tape.kernels[kernel]))
        for tensor in self._leaving(kernel):
            replay.evict(tensor)
            replay.now = max(replay.now, replay.state[tensor].saved)
            self._gone.add(tensor)


class Capuchin(Known):
    """Capuchin (Peng et al., ASPLOS 2020): from measured times of accesses, the activations whose gaps hide their copies best
    are swapped, fetched as long before their use as the copy takes; where copies cannot be hidden and to compute the
    tensor again costs less than what remains, that. Weights stay.
    """

    may_exceed = False

    def __init__(self, tape: Tape, limit: int, link: Link) -> None:
        super().__init__(tape, limit, link)
        self._swapped: set[Place] = set()
        self._again: dict[Place, float] = {}  # seconds
        self._due: list[tuple[int, int, Tensor]] = []  # when to fetch what
        self._dropped: dict[Tensor, float] = {}
        live = self.live.copy()
        free_time = {gap: gap.hidden_seconds(link) for gap in self.gaps() if self.is_activation(gap)}
        for gap in sorted(free_time, key=lambda each: -free_time[each]):
            if live.max() <= limit:
                break
            inside = slice(gap.begin + 1, gap.end)
            if live[inside].max() <= limit:
                continue
            again = self._seconds_again(gap)
            if free_time[gap] < 0 and again is not None and again < -free_time[gap]:
                self._again[gap.place] = again
            else:
                self._swapped.add(gap.place)
            live[inside] -= gap.tensor.nbytes

    def _seconds_again(self, gap: Gap) -> float | None:
        """What the kernel that made it takes; None where what that kernel read is gone, or it was written since."""
        maker = gap.tensor.uses[0]
        kernel = self.tape.kernels[maker]
        use = self.first + gap.end
        if gap.tensor.writes != {maker} or gap.tensor not in kernel.fresh:
            return None
        kept = all(
            (one.dies is None or one.dies > use) and not any(maker < write < use for write in one.writes)
            for one in kernel.reads
        )
        return kernel.seconds if kept else None

    def victim(self, replay: Replay, kernel: int) -> Tensor | None:
        begin = self.tape.steps[self._step]
        local = [tensor for tensor in replay.residents() if tensor.born >= begin and tensor.uses]
        return min(local, key=lambda tensor: replay.state[tensor].idle, default=None)

    def before(self, replay: Replay, kernel: int) -> None:
        while self._due and self._due[0][0] <= kernel:
            tensor = self._due[0][2]
            if tensor in replay.state and not replay.state[tensor].resident:
                if replay.free_bytes() < tensor.nbytes:
                    return
                replay.fetch(tensor, self, kernel)
            self._due.pop(0)

    def bring(self, replay: Replay, tensor: Tensor, kernel: int) -> None:
        if tensor in self._dropped:
            replay.compute_again(tensor, self._dropped.pop(tensor), self, kernel)
        else:
            replay.fetch(tensor, self, kernel)

    def after(self, replay: Replay, kernel: int) -> None:
        offset = self.offset(kernel)
        for slot, tensor in enumerate(operands(self.tape.kernels[kernel])):
            use = tensor.next_use(kernel + 1)
            if use is None:
                continue
            if (offset, slot) in self._again:
                self._dropped[tensor] = self._again[offset, slot]
                replay.drop(tensor)
            elif (offset, slot) in self._swapped:
                replay.evict(tensor)
                begins = self.begins[offset + use - kernel]
                trigger = self.kernel_at(begins - self.link.seconds_in(tensor.nbytes))
                bisect.insort(self._due, (kernel - offset + trigger, len(self._due), tensor), key=lambda due: due[:2])


class DeepUm(Policy):
    """DeepUM (Jung et al., ASPLOS 2023): unified memory, whose pages migrate when they are touched; the kernels that follow a
    kernel are learned, and what they touch is prefetched, some of them ahead. What was migrated longest ago, and is not about
    to be used, leaves ahead of need. Dead memory is not copied.
    """

    AHEAD = 32  # kernels: assumed
    BLOCK = 2 << 20
    # For a block that was not prefetched: assumed, within the 20 to 50 µs that are reported of page faults.
    FAULT_S = 45e-6

    def _soon(self, kernel: int) -> set[Tensor]:
        found: set[Tensor] = set()
        for later in self.tape.kernels[kernel : kernel + self.AHEAD + 1]:
            found.update(operands(later))
        return found

    def _oldest(self, replay: Replay, but: set[Tensor]) -> Tensor | None:
        found = (tensor for tensor in replay.residents() if tensor not in but)
        return min(found, key=lambda tensor: max(replay.state[tensor].idle, replay.state[tensor].ready), default=None)

    def victim(self, replay: Replay, kernel: int) -> Tensor | None:
        return self._oldest(replay, but=self._soon(kernel)) or self._oldest(replay, but=set())

    def before(self, replay: Replay, kernel: int) -> None:
        soon = self._soon(kernel)
        for later in self.tape.kernels[kernel + 1 : kernel + 1 + self.AHEAD]:
            for tensor in later.reads:
                if tensor not in replay.state or replay.state[tensor].resident:
                    continue
                while replay.free_bytes() < tensor.nbytes:
                    oldest = self._oldest(replay, but=soon)
                    if oldest is None:
                        return
                    replay.evict(oldest)
                if replay.in_free > replay.now + self.tape.kernels[kernel].seconds:
                    return
                replay.fetch(tensor, self, kernel)

    def bring(self, replay: Replay, tensor: Tensor, kernel: int) -> None:
        replay.fetch(tensor, self, kernel, extra=-(-tensor.nbytes // self.BLOCK) * self.FAULT_S)


class G10(Known):
    """G10 (Zhang et al., MICRO 2023): all lifetimes are known; gaps are chosen by how much memory they free while it is short,
    for the bytes that they cost; what leaves does so at once, and comes back as early as the plan has room until its use.
    To host memory alone here, where G10 has flash as well.
    """

    def __init__(self, tape: Tape, limit: int, link: Link) -> None:
        super().__init__(tape, limit, link)
        duration = np.diff(np.array(self.begins[: self.length + 1]))
        planned = self.live.copy()
        self._chosen: set[Place] = set()
        gaps = list(self.gaps())
        while gaps and planned.max() > limit:
            short = np.where(planned > limit, duration, 0.0)
            before = np.concatenate([[0.0], np.cumsum(np.concatenate([short, short]))])
            worth = [before[min(gap.end, 2 * self.length)] - before[gap.begin + 1] for gap in gaps]
            best = int(np.argmax(worth))
            if worth[best] <= 0:
                break
            gap = gaps.pop(best)
            self._chosen.add(gap.place)
            inside = np.arange(gap.begin + 1, min(gap.end, gap.begin + self.length)) % self.length
            planned[inside] -= gap.tensor.nbytes
        # By kernel of the tape: what the plan has resident, and what came earlier than it has to.
        self._planned = np.array(tape.live_bytes(), dtype=np.int64)
        for begin, end in itertools.pairwise(tape.steps):
            if end - begin == self.length:
                self._planned[begin:end] = planned
        self._due: list[tuple[int, int, Tensor]] = []  # by use

    def victim(self, replay: Replay, kernel: int) -> Tensor | None:
        return furthest(replay, kernel)

    def before(self, replay: Replay, kernel: int) -> None:
        while self._due:
            use, _, tensor = self._due[0]
            if tensor in replay.state and not replay.state[tensor].resident and use > kernel:
                room = self.limit - self._planned[kernel:use].max()
                if room < tensor.nbytes or replay.free_bytes() < tensor.nbytes:
                    return
                self._planned[kernel:use] += tensor.nbytes
                replay.fetch(tensor, self, kernel)
            self._due.pop(0)

    def after(self, replay: Replay, kernel: int) -> None:
        offset = self.offset(kernel)
        for slot, tensor in enumerate(operands(self.tape.kernels[kernel])):
            use = tensor.next_use(kernel + 1)
            if (offset, slot) in self._chosen and use is not None and replay.state[tensor].resident:
                replay.evict(tensor)
                bisect.insort(self._due, (use, len(self._due), tensor), key=lambda due: due[:2])


def furthest(replay: Replay, kernel: int) -> Tensor | None:
    """What is needed again last, or never (Belady)."""
    never = len(replay.tape.kernels)

    def next_use(tensor: Tensor) -> int:
        use = tensor.next_use(kernel)
        return never if use is None else use

    return max(replay.residents(), key=next_use, default=None)


POLICIES: dict[str, type[Policy]] = {
    "IBM": Ibm,
    "vDNN": Vdnn,
    "Capuchin": Capuchin,
    "DeepUM": DeepUm,
    "G10": G10,
}
