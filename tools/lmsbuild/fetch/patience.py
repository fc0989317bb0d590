"""Waiting out a hiccup of the network that a program which was started ran into."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from lmsbuild import report
from lmsbuild.command import Finished

pause = time.sleep  # tests, which do not wait, replace it

_WAITS = (2.0, 4.0, 8.0)  # seconds


def repeat(attempt: Callable[[], Finished], hiccup: re.Pattern[str]) -> Finished:
    """What a program printed, which is run again, three times at most, while it fails with an error that `hiccup` matches."""
    for wait in _WAITS:
        done = attempt()
        found = hiccup.search(done.error_text) if done.code else None
        if found is None:
            return done
        report.note(f"{found[0]}; trying again")
        pause(wait)
    return attempt()
