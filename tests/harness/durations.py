"""What a run took: the twenty dearest fixtures and files, and the sum, at its end, however it ends.

`--end-after MINUTES` interrupts a run that takes longer, so that it ends with this table and not at somebody's limit, without a
word.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

_MOST = 20
_PROPERTY = "fixture_seconds"  # how a process of xdist tells the first one


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--end-after", type=float, metavar="MINUTES", help="end the run, as a failure, when it takes longer than that"
    )


class Durations:
    """A plugin. Sums are of seconds, over all processes."""

    def __init__(self, minutes: float | None) -> None:
        self._begin = time.monotonic()
        self._fixtures: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._fresh: Counter[str] = Counter()  # of fixtures that no report has told of
        self._minutes = minutes
        self._timer: threading.Timer | None = None
        self._is_late = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._minutes is not None and not hasattr(session.config, "workerinput"):
            self._timer = threading.Timer(self._minutes * 60, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self._is_late = True
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        begin = time.monotonic()
        try:
            return (yield)
        finally:
            self._fresh[fixturedef.argname] += time.monotonic() - begin

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._fresh:
            report.user_properties.append((_PROPERTY, dict(self._fresh)))
            self._fresh.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._files[report.nodeid.partition("::")[0]] += report.duration
        # A report has the properties of those before it, of the same test, too.
        if report.when == "setup":
            self._add_fixtures(report)

    def _add_fixtures(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._fixtures.update(value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._timer:
            self._timer.cancel()
        if self._minutes is None:
            return
        for title, sums in (("fixtures", self._fixtures), ("files", self._files)):
            terminalreporter.section(f"the {_MOST} slowest {title}, in seconds")
            for name, seconds in sums.most_common(_MOST):
                terminalreporter.write_line(f"{seconds:8.1f} {name}")
        tests, minutes = sum(self._files.values()), (time.monotonic() - self._begin) / 60
        terminalreporter.write_line(f"{tests:8.1f} all tests, in {minutes:.1f} minutes")
        if self._is_late:
            terminalreporter.write_line(
                f"error: ended, since the run took more than {self._minutes:g} minutes", red=True
            )
