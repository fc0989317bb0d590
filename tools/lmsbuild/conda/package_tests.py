"""The tests inside a package: whether the channels that they need can be read, and whether they pass."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmsbuild import command, report
from lmsbuild.conda import package_file
from lmsbuild.errors import ChannelUnreachable, CondaBuildFailed, UnsolvableTest
from lmsbuild.programs import conda_tests

_CUDA, _NEWEST = "CONDA_OVERRIDE_CUDA", "99.0"  # tells clients which CUDA the driver has


def address(channel: str) -> str:
    """A channel as programs find it from any folder: the address of a folder that is there, or the name as it is."""
    return Path(channel).resolve().as_uri() if Path(channel).is_dir() else channel


def check_channels(channels: Sequence[str], subdir: str) -> None:
    """Raises ChannelUnreachable unless each channel can be read for this platform, within seconds."""
    for name in channels:
        if reason := _ask(subdir, None, [name]):
            raise ChannelUnreachable(
                f"the channel {name} cannot be read ({reason}): what the package requires comes "
                "from there for its tests. Name another with --channel, or leave the tests out with --no-test"
            )


def run(package: Path, channels: Sequence[str]) -> bool:
    """Runs the tests in an environment of what the channels have; returns whether there are any. Those of a CUDA build need no GPU.

    Raises CondaBuildFailed when one fails, UnsolvableTest when there is no such environment, ChannelUnreachable.
    """
    index = package_file.read_description(package)["index"]
    environment = dict(os.environ)
    if any(text.split()[0] == "__cuda" for text in index.get("depends", ())):
        environment.setdefault(_CUDA, _NEWEST)
    words: list[str | Path] = [sys.executable, "-m", "lmsbuild.programs.conda_tests", package]
    words += map(address, channels)
    with report.progress("test", None):
        done = command.run(words, environment=environment)
    report.output(done.text)
    if done.code == conda_tests.NO_ENVIRONMENT:
        check_channels(channels, index["subdir"])
        raise UnsolvableTest(
            f"what {package.name} requires cannot be installed from {', '.join(channels) or 'no channel'}, so its tests did not "
            f"run: {_unsolvable(index, channels)}\n  Name the channels that have it with --channel."
        )
    if done.code not in (0, conda_tests.NO_TESTS):
        said = [line for line in (done.text + done.error_text).splitlines() if line.strip()]
        raise CondaBuildFailed(
            f"a test inside {package.name} failed: {said[-1].strip() if said else 'it said nothing'}\n"
            "  Run again with -v for all that it said."
        )
    return done.code == 0


def _unsolvable(index: dict[str, Any], channels: Sequence[str]) -> str:
    """Which of the requirements in index.json the channels do not have."""
    depends = [text for text in index.get("depends", ()) if not text.startswith("__")]
    asked = {"depends": depends, "constrains": list(index.get("constrains", ()))}
    return _ask(index["subdir"], asked, channels) or "it could not be installed"


def _ask(subdir: str, requirements: dict[str, list[str]] | None, channels: Sequence[str]) -> str:
    """What is wrong with the channels, or with finding the requirements in them; empty when nothing is."""
    words = [sys.executable, "-m", "lmsbuild.programs.conda_channels", subdir, json.dumps(requirements)]
    done = command.run([*words, *map(address, channels)])
    return done.text.strip() or (done.error_text.strip() if done.code else "")
