"""Signals that end the tool: each ends it as Ctrl-C does, with what was begun cleaned up."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

# Those that end a program which does not handle them, but for SIGPIPE and SIGXFSZ, of which Python makes errors, SIGKILL, and
# those of the program's own faults.
_ENDING = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGXCPU, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2),
)
_LONGEST = 0.2  # seconds that a signal may wait
_AGAIN = 0.01  # seconds after which a signal that was dropped, or put off, comes again
_LOADING = 5.0  # seconds for which modules that are being loaded put a signal off
_postponing = 0  # blocks of `postponed` that the main thread is in
_arrived: list[int] = []


class Ended(KeyboardInterrupt):
    """One of the signals."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def install() -> None:
    """Raises Ended in the main thread when a signal arrives; those that are ignored, as under nohup, stay ignored."""
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    sys.unraisablehook = _raise_again


@contextmanager
def postponed() -> Iterator[None]:
    """A signal that arrives in this block is raised at its end. In other threads, where none is raised, it is no more than the block."""
    global _postponing
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _postponing += 1
    try:
        yield
    finally:
        _postponing -= 1
        if _arrived and not _postponing:
            raise Ended(_arrived.pop())


def completed(futures: Iterable[Future[T]]) -> Iterator[Future[T]]:
    """The futures as they are done, like as_completed; but of two signals at once both can go to threads that do not wake the one
    which waits without end. Each future costs the same, however many there are.
    """
    done: SimpleQueue[Future[T]] = SimpleQueue()
    left = set(futures)
    for future in left:
        future.add_done_callback(done.put)
    for _ in range(len(left)):
        yield _next_of(done)


def _next_of(done: SimpleQueue[T]) -> T:
    while True:
        with suppress(Empty):
            return done.get(timeout=_LONGEST)


def _end(number: int, frame: FrameType | None, left: float = _LOADING) -> None:
    """`left`: for how many seconds more modules that are being loaded put it off; they may turn an exception into another."""
    for each in _ENDING:  # a second one would interrupt the cleaning
        signal.signal(each, signal.SIG_IGN)
    if _postponing:
        _arrived.append(number)
    elif left > 0 and _is_loading(frame):
        _come_again(number, left - _AGAIN)
    else:
        raise Ended(number)


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _come_again(number: int, left: float = _LOADING) -> None:
    signal.signal(signal.SIGALRM, lambda _, frame: _end(number, frame, left))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN)


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops an exception in a destructor or callback, where nobody could catch it: the signal comes again a moment later."""
    if isinstance(dropped.exc_value, Ended):
        _come_again(dropped.exc_value.number)
    else:
        sys.__unraisablehook__(dropped)
