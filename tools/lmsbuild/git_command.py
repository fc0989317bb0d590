"""Git: hashes, and environments in which the result does not depend on who runs it, or in which the network is the user's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from lmsbuild import command

_BINDING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


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


def unbound(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables` without those that bind git to a repository, which hooks and `git rebase --exec` leave set."""
    return {name: value for name, value in variables.items() if name not in _BINDING}


def own_environment() -> dict[str, str]:
    """The user's environment, with the user's configuration of git, but no question.

    For what talks to a network, whose proxies, mirrors and keys only the user's configuration knows.
    """
    return {**unbound(os.environ), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def run(
    folder: Path, *arguments: str | Path, extra: Mapping[str, str] | None = None, stdin: bytes = b""
) -> command.Finished:
    """Runs git in `folder`, isolated, and returns what it printed, whatever its exit code."""
    return command.run(["git", "-C", folder, *arguments], environment=environment(folder, extra), stdin=stdin)
