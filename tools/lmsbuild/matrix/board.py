"""What there is to see of many rows: while they are built, and a table at the end."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmsbuild import report
from lmsbuild.matrix.build_row import Outcome
from lmsbuild.matrix.row import Row

_STYLES = {"built": "green", "failed": "bold red"}


class Board:
    """Says what became of each row, and on a terminal, below that, what runs here and how many are done."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun: dict[Row, float] = {}  # the rows that this machine builds now, with the time
        self._states: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def shown(self) -> Iterator[None]:
        with report.live(self.table):
            yield

    def begin(self, row: Row) -> None:
        with self._lock:
            self._begun[row] = time.monotonic()

    def end(self, outcome: Outcome) -> None:
        with self._lock:
            self._begun.pop(outcome.row, None)
            self._states[outcome.state] += 1
        report.note(f"{outcome.state}: {outcome.row.name}{_detail(outcome)}")

    def table(self) -> Table:
        with self._lock:
            done = sum(self._states.values())
            counts = "".join(f", {count} {state}" for state, count in sorted(self._states.items()))
            table = Table(
                box=None, title=f"{done} of {self._total} rows{counts}", title_justify="left", show_header=False
            )
            for row, begun in self._begun.items():
                table.add_row("building", row.name, f"{time.monotonic() - begun:.0f} s")
        return table


def show(outcomes: Sequence[Outcome]) -> None:
    """Prints what became of all rows: a table on a terminal, elsewhere a line for each with tabs between the columns."""
    if not sys.stdout.isatty():
        for outcome in outcomes:
            print(outcome.row.name, outcome.state, f"{outcome.seconds:.1f}", _result(outcome), sep="\t")
        return
    table = Table("row", "state", "seconds", "file, or reason")
    for outcome in outcomes:
        style = _STYLES.get(outcome.state, "")
        state = f"[{style}]{outcome.state}[/]" if style else outcome.state
        table.add_row(outcome.row.name, state, f"{outcome.seconds:.1f}", Text(report.verbatim(_result(outcome))))
    Console().print(table)


def _detail(outcome: Outcome) -> str:
    if outcome.state == "failed":
        return f": {_result(outcome)}"
    return f" ({outcome.seconds:.1f} s)" if outcome.seconds else ""


def _result(outcome: Outcome) -> str:
    lines = outcome.reason.splitlines()
    return lines[0] if lines else " ".join(product.path for product in outcome.products)
