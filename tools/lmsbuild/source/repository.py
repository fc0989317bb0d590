"""Repositories of our own making, into which everything is fetched by git's protocol, which hashes what it brings.

Nothing is copied from another repository: neither its settings nor its hooks, nor objects that nobody has hashed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import command, git_command
from lmsbuild.errors import NoSpace, SourceUnreachable
from lmsbuild.fetch import patience
from lmsbuild.source import address, foreign

_HICCUP = re.compile(
    r"Could not resolve (?:host|proxy)|Connection (?:timed out|reset|refused)|Couldn't connect|Failed to connect|Empty reply"
    r"|early EOF|unexpected disconnect|hung up unexpectedly|RPC failed|returned error: (?:429|5\d\d)"
)

_LITTLE = 1 << 20  # bytes

# Slips of old programs in objects that upstream's projects have had for years. They leave no doubt about any content.
_TOLERATED = (
    *("badDate", "badEmail", "badFilemode", "badName", "badTimezone", "missingEmail", "missingNameBeforeEmail"),
    *(
        "missingSpaceBeforeDate",
        "missingSpaceBeforeEmail",
        "missingTaggerEntry",
        "zeroPaddedDate",
        "zeroPaddedFilemode",
    ),
)
_CHECKED = {
    "fetch.fsckObjects": "true",
    "transfer.fsckObjects": "true",
    **{f"fetch.fsck.{slip}": "ignore" for slip in _TOLERATED},
}


@dataclass(frozen=True)
class Place:
    """Where a repository is fetched from."""

    said: str  # as messages name it
    url: str  # what git is given
    protocols: str  # that git may speak, with colons between them
    lender: Path | None = None  # the repository of our own that lends the objects of one on this machine


def create(folder: Path, *words: str | Path) -> None:
    """Makes an empty repository, whose attributes name no program. Raises SourceUnreachable."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    inside = folder.parent
    checked(inside, "init", "--quiet", "--template=", "--object-format=sha1", *words, folder)


def without_filters(git: Path) -> None:
    """Files are written as they are, without the programs that attributes of theirs may name."""
    (git / "info").mkdir(exist_ok=True)
    (git / "info/attributes").write_text("* -filter\n")


def locate(asked: str, said: str, scratch: Path, tag: str = "") -> Place:
    """What git is given for the address `asked`: on this machine, a repository in `scratch` that lends its objects.

    The tag goes with them. Raises UnsafeSource, OtherOwner or SourceUnreachable.
    """
    spoken = address.spoken(asked)
    settled = git_command.run_as_user(scratch, "ls-remote", "--get-url", "--", asked).text.strip() or asked
    local = address.local_path(settled)
    if local is None:
        return Place(said, asked, spoken if settled == asked else address.spoken(settled))
    path = Path(local).absolute()
    if path.is_file():
        return Place(said, str(path), "file")
    found = foreign.find(path)
    if found is None:
        raise SourceUnreachable(unreachable(said, f"'{path}' does not appear to be a git repository"))
    foreign.check_files(found)
    foreign.check_owner(found)
    return lent(found, said, scratch, tag)


def lent(repository: foreign.Repository, said: str, scratch: Path, tag: str = "") -> Place:
    """The place of a repository on this machine of which `foreign.check_files` found nothing.

    Raises UnsafeSource or SourceUnreachable.
    """
    lender = Path(tempfile.mkdtemp(prefix="lender-", dir=scratch))
    create(lender, "--bare")
    foreign.lend(repository, lender)
    if tag:
        name = f"refs/tags/{tag}"
        there = git_command.run_as_user(lender, f"--git-dir={repository.git}", "rev-parse", "--verify", "--quiet", name)
        if there.code == 0:
            done = run(lender, "update-ref", name, there.text.strip())
            if done.code:
                raise SourceUnreachable(unreachable(said, reason(done)))
    return Place(said, str(lender), "file", lender)


def has(place: Place, commit: str) -> bool:
    """Whether what lends its objects has this commit."""
    return place.lender is not None and run(place.lender, "cat-file", "-e", f"{commit}^{{commit}}").code == 0


def fetch(folder: Path, place: Place, what: str, *words: str) -> command.Finished:
    """Runs `git fetch` of one revision, without its history, from `place`, which is the remote origin."""
    arguments = ("fetch", "--quiet", "--no-tags", "--depth", "1", *words, "origin", what)
    return run(folder, *arguments, protocols=place.protocols, settings=_CHECKED)


def check_out(folder: Path, place: Place, revision: str) -> command.Finished:
    """Writes the files of a revision; those that a fetch left out come from `place` now."""
    words = ("checkout", "--quiet", "--force", "--detach", revision)
    return run(folder, *words, protocols=place.protocols, settings=_CHECKED)


def checked(folder: Path, *words: str | Path, settings: Mapping[str, str] | None = None) -> command.Finished:
    """Runs git, which talks to no other repository. Raises SourceUnreachable when it fails."""
    done = run(folder, *words, settings=settings)
    if done.code:
        raise SourceUnreachable(f"git {words[0]} in {folder} failed: {reason(done)}")
    return done


def run(
    folder: Path, *words: str | Path, protocols: str = "", settings: Mapping[str, str] | None = None
) -> command.Finished:
    """Runs git, again after a hiccup of the network. Raises NoSpace."""
    done = patience.repeat(
        lambda: git_command.run_as_user(folder, *words, settings=settings, protocols=protocols), _HICCUP
    )
    # Of a file in a checkout git says no more than that it could not be written.
    is_full = done.code and "unable to write" in done.error_text and shutil.disk_usage(folder).free < _LITTLE
    if done.found_no_space or is_full:
        raise NoSpace(folder, "git says so")
    return done


def reason(done: command.Finished, place: Place | None = None) -> str:
    """The first line in which git says what went wrong."""
    lines = [line for line in done.error_text.splitlines() if line.startswith(("fatal:", "error:"))]
    said = (lines or done.error_text.strip().splitlines() or ["no reason given"])[0].removeprefix("fatal: ")
    return said.replace(place.url, place.said) if place else said


def unreachable(said: str, why: str) -> str:
    return (
        f"git cannot fetch from {said}: {why}. Check the network (git uses its own settings, such as http.proxy), "
        "or give a clone, a bundle or a mirror with --source"
    )
