"""Runs pip, as it is configured, and lets it wait out a hiccup of the network for half a minute.

pip itself repeats requests that fail, for 8 seconds unless it is configured otherwise, and from 25.1 on resumes downloads.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lmsbuild import command
from lmsbuild.fetch import patience

# Waits of 0, 0.5, 1, 2, 4, 8 and 16 seconds, unless the user's environment says otherwise. It is said in the environment,
# where a pip that knows nothing of it ignores it.
PATIENCE = {"PIP_RETRIES": "7", "PIP_RESUME_RETRIES": "7"}
# What a pip that cannot, or may not, resume ends with when a download stops half way.
_CUT_SHORT = re.compile(
    r"(?m)^(?:pip\._vendor\.urllib3\.exceptions\.\w+|error: incomplete-download|ERROR: .*DO NOT MATCH THE HASHES"
    r"|ERROR: .* located at \S*/pip-unpack-\S* is invalid)"
)


def run(
    words: Sequence[str | Path],
    *,
    python: str | Path = sys.executable,
    on_line: Callable[[str], None] | None = None,
) -> command.Finished:
    """Runs pip of an interpreter; again, when a download was cut short. Thread-safe. Raises MissingProgram."""
    arguments = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    variables = {**PATIENCE, **os.environ}

    def attempt() -> command.Finished:
        finished = command.run(arguments, environment=variables, on_line=on_line)
        variables["PIP_NO_CACHE_DIR"] = "1"  # where half a file may be
        return finished

    return patience.repeat(attempt, _CUT_SHORT)


def versions(packages: Sequence[str]) -> tuple[list[str], str]:
    """What `pip index versions` prints of each package, up to the first that pip does not find, and why it does not find that one."""
    done = command.run([sys.executable, "-m", "lmsbuild.programs.pip_versions", *packages])
    *found, _ = done.text.split("\0")
    return found, (done.error_text.strip().splitlines() or ["no reason given"])[-1]


def configuration() -> str:
    """What pip is configured to do, a setting a line, as `pip config list` prints it."""
    return run(["config", "list"]).text
