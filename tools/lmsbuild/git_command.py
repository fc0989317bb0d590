"""Git: hashes, environments, and settings with which it runs no program that a repository names.

In one environment the result does not depend on who runs it; in the other the network and the identity are the user's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from lmsbuild import command

_BINDING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")

# Of every run: these win over what any file of settings says.
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "",  # to git before 2.36, "false" is the name of a program
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "protocol.version": "2",  # in which any commit can be asked for
}


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


def own_environment(folder: Path, protocols: str) -> dict[str, str]:
    """The user's environment, with the user's configuration of git, but no question, and no repository above `folder`.

    For what talks to a network, whose proxies, mirrors and keys only the user's configuration knows, and for commits.
    Git speaks no other than these protocols, with colons between them.
    """
    return {
        **unbound(os.environ),
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        "GIT_DEFAULT_REF_FORMAT": "files",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def run(
    folder: Path, *arguments: str | Path, extra: Mapping[str, str] | None = None, stdin: bytes = b""
) -> command.Finished:
    """Runs git in `folder`, isolated, and returns what it printed, whatever its exit code."""
    return command.run(_words(folder, {}, arguments), environment=environment(folder, extra), stdin=stdin)


def run_as_user(
    folder: Path, *arguments: str | Path, settings: Mapping[str, str] | None = None, protocols: str = ""
) -> command.Finished:
    """Runs git in `folder` with the user's configuration and these settings; otherwise as `run`.

    Without `protocols` it talks to no other repository.
    """
    words = _words(folder, settings or {}, arguments)
    return command.run(words, environment=own_environment(folder, protocols))


def _words(folder: Path, settings: Mapping[str, str], arguments: tuple[str | Path, ...]) -> list[str | Path]:
    chosen = [word for name, value in {**_SETTINGS, **settings}.items() for word in ("-c", f"{name}={value}")]
    return ["git", "-C", folder, *chosen, *arguments]
