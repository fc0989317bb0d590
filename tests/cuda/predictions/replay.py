"""Plays a tape under a limit: a device with one engine for kernels and one for copies each way, and a policy that says what
leaves and what comes back, when.

Policies are those that the literature describes, as far as a sequence of kernels, with its tensors and times, shows them.
What they would learn from earlier steps they are given. Neither the host nor the driver takes any time here, memory has no
fragments, and a copy knows its size alone: all of it in favour of the policy.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from predictions.tape import Tape, Tensor


class DoesNotFit(Exception):
    """The policy cannot train in so little memory."""


@dataclass(frozen=True)
class Link:
    """Bytes per second each way, and seconds before the first byte."""

    inwards: float
    outwards: float
    latency: float

    def seconds_in(self, nbytes: int) -> float:
        return self.latency + nbytes / self.inwards

    def seconds_out(self, nbytes: int) -> float:
        return self.latency + nbytes / self.outwards


@dataclass
class State:
    """Of one tensor. Moments are seconds of the replay."""

    resident: bool = True
    clean: bool = False  # the host has the contents
    ready: float = 0.0  # when the contents are on the device
    idle: float = 0.0  # when the last kernel that used it was over
    saved: float = 0.0  # when the contents are on the host


@dataclass(frozen=True)
class Outcome:
    """Of the last steps: seconds and bytes of one."""

    seconds: float
    out_bytes: float
    in_bytes: float
    most_bytes: int


@dataclass
class Replay:
    tape: Tape
    limit: int
    link: Link
    now: float = 0.0  # when the kernels so far are over
    used: int = 0  # bytes that are taken, those that are on their way out left out
    most: int = 0
    out_free: float = 0.0
    in_free: float = 0.0
    out_bytes: int = 0
    in_bytes: int = 0
    state: dict[Tensor, State] = field(default_factory=dict)  # of what lives
    _leaving: list[tuple[float, int]] = field(default_factory=list)  # when how many bytes are free: a heap
    _held: set[Tensor] = field(default_factory=set)  # by the kernel at hand

    # --- what policies call

    def residents(self) -> list[Tensor]:
        """What may leave."""
        return [tensor for tensor, state in self.state.items() if state.resident and tensor not in self._held]

    def free_bytes(self) -> int:
        """Bytes that nobody has, those that are on their way out included."""
        return self.limit - self.used

    def write_back(self, tensor: Tensor) -> None:
        """The host gets a copy; the tensor stays."""
        state = self.state[tensor]
        if not state.clean:
            start = max(self.out_free, state.idle, state.ready, self.now)
            self.out_free = state.saved = start + self.link.seconds_out(tensor.nbytes)
            self.out_bytes += tensor.nbytes
            state.clean = True

    def evict(self, tensor: Tensor) -> None:
        self.write_back(tensor)
        state = self.state[tensor]
        state.resident = False
        self._release(max(state.saved, state.idle), tensor.nbytes)

    def drop(self, tensor: Tensor) -> None:
        """The contents are lost: to be computed again."""
        state = self.state[tensor]
        state.resident = False
        self._release(state.idle, tensor.nbytes)

    def fetch(self, tensor: Tensor, policy: Policy, kernel: int, extra: float = 0.0) -> None:
        """`extra`: seconds that it costs beside the copy."""
        state = self.state[tensor]
        space = self._take(tensor.nbytes, policy, kernel)
        start = max(self.in_free, space, state.saved, self.now) + extra
        self.in_free = state.ready = start + self.link.seconds_in(tensor.nbytes)
        self.in_bytes += tensor.nbytes
        state.resident = True

    def compute_again(self, tensor: Tensor, seconds: float, policy: Policy, kernel: int) -> None:
        space = self._take(tensor.nbytes, policy, kernel)
        self.now = max(self.now, space) + seconds
        self.state[tensor].resident = True
        self.state[tensor].ready = self.now

    # --- the rest

    def _release(self, moment: float, nbytes: int) -> None:
        self.used -= nbytes
        heapq.heappush(self._leaving, (moment, nbytes))

    def _take(self, nbytes: int, policy: Policy, kernel: int) -> float:
        """When so many bytes are free; they are taken."""
        while self.free_bytes() < nbytes:
            victim = policy.victim(self, kernel)
            if victim is None and not policy.may_exceed:
                raise DoesNotFit
            if victim is None:
                break  # one kernel needs more than the limit: LMS goes past it, and so may all that work on demand
            self.evict(victim)
        self.used += nbytes
        self.most = max(self.most, self.used)
        moment = self.now
        # Of the bytes on their way out, the first to arrive make room for the latest taken.
        over = self.used + sum(leaving for _, leaving in self._leaving) - self.limit
        while over > 0 and self._leaving:
            arrived, leaving = heapq.heappop(self._leaving)
            over -= leaving
            moment = max(moment, arrived)
        while self._leaving and self._leaving[0][0] <= self.now:
            heapq.heappop(self._leaving)
        return moment

    def play(self, policy: Policy, measured: int) -> Outcome:
        """Plays the tape; the last `measured` steps count, and the limit holds from two before them on: the first steps of
        a program, which make gradients and what the optimiser keeps, are unlike the others.
        """
        begin, limited, limit = self.tape.steps[-1 - measured], self.tape.steps[-3 - measured], self.limit
        self.limit = sum(tensor.nbytes for tensor in self.tape.tensors)
        since: tuple[float, int, int] = (0.0, 0, 0)
        for number, kernel in enumerate(self.tape.kernels[: self.tape.steps[-1]]):
            if number == limited:
                self.limit, self.most = limit, 0
                self._take(0, policy, number)
            if number == begin:
                since = (self.now, self.out_bytes, self.in_bytes)
            for tensor in self.tape.freed[number]:
                state = self.state.pop(tensor)
                if state.resident:
                    self._release(max(state.idle, state.ready), tensor.nbytes)
            self._held = {*kernel.reads, *kernel.fresh}
            for tensor in self.tape.allocated[number]:
                ready = self._take(tensor.nbytes, policy, number)
                self.state[tensor] = State(ready=ready)
                self._held.add(tensor)
            policy.before(self, number)
            for tensor in kernel.reads:
                if not self.state[tensor].resident:
                    policy.bring(self, tensor, number)
            for tensor in kernel.fresh:
                if not self.state[tensor].resident:  # never written: nothing to copy
                    self.state[tensor].ready = self._take(tensor.nbytes, policy, number)
                    self.state[tensor].resident = True
            self.now = max([self.now, *(self.state[tensor].ready for tensor in self._held)]) + kernel.seconds
            for tensor in (*kernel.reads, *kernel.fresh):
                state = self.state[tensor]
                state.idle = self.now
                if number in tensor.writes:
                    state.clean = False
            self._held = set()
            policy.after(self, number)
        return Outcome(
            (self.now - since[0]) / measured,
            (self.out_bytes - since[1]) / measured,
            (self.in_bytes - since[2]) / measured,
            self.most,
        )


class Policy:
    """On demand, and what was used longest ago leaves first."""

    #: Whether it goes on where one kernel needs more than the limit.
    may_exceed = True

    def __init__(self, tape: Tape, limit: int, link: Link) -> None:
        self.tape = tape
        self.limit = limit
        self.link = link
        self._step = 0

    def offset(self, kernel: int) -> int:
        """The kernel's number in its step. Asked in the order of the tape."""
        while kernel >= self.tape.steps[self._step + 1]:
            self._step += 1
        return kernel - self.tape.steps[self._step]

    def victim(self, replay: Replay, kernel: int) -> Tensor | None:
        return min(replay.residents(), key=lambda tensor: replay.state[tensor].idle, default=None)

    def before(self, replay: Replay, kernel: int) -> None:
        """The kernel is about to begin; what it needs may be away."""

    def bring(self, replay: Replay, tensor: Tensor, kernel: int) -> None:
        """The kernel needs it, and it is away."""
        replay.fetch(tensor, self, kernel)

    def after(self, replay: Replay, kernel: int) -> None:
        """The kernel was enqueued."""
