"""Runs git so that the result does not depend on who runs it: no configuration of the user's, none of the system's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from lmsbuild import command


def blob_hash(data: bytes) -> str:
    """Git's hash of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which git sees only `folder`, even when that lies inside another checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    kept.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CEILING_DIRECTORIES=str(folder.resolve().parent),
        GIT_TERMINAL_PROMPT="0",
        LC_ALL="C",
        TZ="UTC",
        COLUMNS="80",
    )
    kept.update(extra or {})
    return kept


def run(
    folder: Path, *arguments: str | Path, extra: Mapping[str, str] | None = None, stdin: bytes = b""
) -> command.Finished:
    """Runs git in `folder`, isolated, and returns what it printed, whatever its exit code."""
    return command.run(["git", "-C", folder, *arguments], environment=environment(folder, extra), stdin=stdin)
