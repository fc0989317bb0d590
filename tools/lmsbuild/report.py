"""What the tool says while it works: stages, notes, commands and progress bars, all on standard error.

On a terminal a stage has a spinner or a bar, and its time when it ends; elsewhere it is one line, when it begins. Standard output carries
results, so that it can be piped. rich is not imported before a style or a bar needs it, which takes longer than `lmsbuild matrix`, and
scripts that read the catalogue have no packages.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from lmsbuild.errors import ReaderGone

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status

_verbose = False


@functools.cache
def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def configure(*, verbose: bool) -> None:
    """Sets whether commands are shown."""
    global _verbose
    _verbose = verbose


def masked(text: str) -> str:
    """The text without the passwords of the addresses in it."""
    return re.sub(r"(\w://[^\s/:@]*):[^\s/@]*@", r"\1:***@", text)


class _Stages:
    """The stages of a run on a terminal, one after the other. Of one thread."""

    def __init__(self) -> None:
        self.depth = 0  # of runs, one of which may be a part of another
        self._name = ""
        self._begin = 0.0
        self._spinner: Status | None = None

    def begin(self, name: str) -> None:
        self.end()
        self._name, self._begin = name, time.monotonic()
        self._spinner = _console().status(verbatim(masked(name)))
        self._spinner.start()

    def end(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None
            _say(f"{self._name}  {time.monotonic() - self._begin:.1f} s", "bold")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which something else moves on the terminal."""
        spinner = self._spinner
        if spinner:
            spinner.stop()
        try:
            yield
        finally:
            if spinner and spinner is self._spinner:
                spinner.start()


_stages = _Stages()


@contextmanager
def stages() -> Iterator[None]:
    """A run that consists of stages: the last one ends with it."""
    _stages.depth += 1
    try:
        yield
    finally:
        _stages.depth -= 1
        with suppress(OSError, ReaderGone):  # of a terminal that is gone
            _stages.end()


def stage(name: str) -> None:
    """Says that the stage called `name` begins, and so the one before it ends."""
    if _stages.depth and _console().is_terminal:
        _stages.begin(name)
    else:
        _say(name, "bold")


def note(message: str) -> None:
    """Says something that the reader should know, but that is no failure."""
    _say(f"  {message}")


def command(arguments: Sequence[str]) -> None:
    """Shows a command that is about to run, when the reader asked to see them."""
    if _verbose:
        _say(f"+ {shlex.join(arguments)}")


def output(text: str) -> None:
    """Shows what a command printed, when the reader asked to see commands."""
    if _verbose and text.strip():
        _say(text.rstrip())


def failure(message: str) -> None:
    """Shows why the tool gives up, in any case: without colour where rich cannot be loaded."""
    style = "bold red"
    try:
        _console()
    except (ImportError, SyntaxError, AttributeError, OSError, MemoryError):
        style = ""
    with suppress(OSError, ReaderGone):  # of a terminal that is gone
        _say("error:", style, end=" ")
        _say(message)


def verbatim(text: str) -> str:
    """The text with characters that would do something to a terminal as escapes: of names of files, and what programs print."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def _say(text: str, style: str = "", end: str = "\n") -> None:
    text = verbatim(masked(text))
    if style or _console.cache_info().currsize:
        _console().print(text, style=style, end=end, markup=False)
    else:  # it is plain, and there is no bar that it would have to appear above
        print(text, file=sys.stderr, end=end)


class Show(Protocol):
    """Sets how much is done, and of how much when that is known only now."""

    def __call__(self, done: float, of: float | None = None) -> None: ...


def _show_nothing(done: float, of: float | None = None) -> None:
    pass


@contextmanager
def progress(label: str, total: float | None, *, is_bytes: bool = False) -> Iterator[Show]:
    """A progress bar; yields the function that sets how much of `total` (None: not known, or not yet) is done.

    It shows how much that is, of bytes how many a second, and the time that it has taken.
    """
    if not _console().is_terminal:
        yield _show_nothing
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    amount: tuple[ProgressColumn, ...] = ()
    if is_bytes:
        amount = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    elif total is not None and total > 1:
        amount = (MofNCompleteColumn(),)
    columns = (
        TextColumn("  {task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        *amount,
        TimeElapsedColumn(),
    )
    with _stages.paused(), Progress(*columns, console=_console(), transient=True) as bars:
        task = bars.add_task(verbatim(label), total=total)
        yield lambda done, of=None: bars.update(task, completed=done, total=of)


@contextmanager
def live(picture: Callable[[], RenderableType]) -> Iterator[None]:
    """Shows, on a terminal, what `picture` returns, twice a second; what is said meanwhile appears above it."""
    if not _console().is_terminal:
        yield
        return
    from rich.live import Live

    with Live(get_renderable=picture, console=_console(), transient=True, refresh_per_second=2):
        yield
