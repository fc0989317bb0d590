"""The edits of upstream's files that a tag's hook consists of, read from patches/catalogue/<framework>/edits.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.catalogue.catalogue import Tag, read_toml
from lmsbuild.errors import BadSources

_OUTSIDE = re.compile(r"^[^\s#)]", re.MULTILINE)  # begins the line after a block


@dataclass(frozen=True)
class Edit:
    """Text that is inserted into one existing file, beside an anchor that occurs exactly once."""

    path: str
    within: str  # the line that opens the block which the anchor is in; empty: anywhere
    anchor: str  # whole lines
    before: str  # inserted before the anchor
    after: str  # inserted after the anchor
    since: str  # the first tag it is for; empty: no bound
    until: str  # the last one; empty: no bound


def read_edits(patches: Path, tag: Tag) -> list[Edit]:
    """Reads the edits that are for `tag` from patches/catalogue/<framework>/edits.toml."""
    edits = []
    for row in read_toml(patches / "catalogue" / tag.framework / "edits.toml")["edit"]:
        edit = Edit(
            path=row["path"],
            within=row.get("within", ""),
            anchor=row["anchor"],
            before=row.get("before", ""),
            after=row.get("after", ""),
            since=row.get("since", ""),
            until=row.get("until", ""),
        )
        if tag.is_within(edit.since, edit.until):
            edits.append(edit)
    return edits


def apply_edits(edits: list[Edit], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the edited files. Raises BadSources when an anchor does not occur exactly once in its block."""
    edited = dict(files)
    for edit in edits:
        for text in (edit.within, edit.anchor, edit.before, edit.after):
            if text and not text.endswith("\n"):
                raise BadSources(f"an edit of {edit.path} has a text that is not whole lines: {text!r}")
        if edit.path not in edited:
            raise BadSources(f"an edit is for {edit.path}, which tags.toml does not list for this tag")
        content = edited[edit.path].decode()
        begin, end = 0, len(content)
        if edit.within:
            _, begin = _only(edit.path, content, edit.within, 0, end)
            following = _OUTSIDE.search(content, begin)
            end = following.start() if following else end
        first, last = _only(edit.path, content, edit.anchor, begin, end)
        changed = content[:first] + edit.before + edit.anchor + edit.after + content[last:]
        edited[edit.path] = changed.encode()
    return edited


def _only(path: str, content: str, lines: str, begin: int, end: int) -> tuple[int, int]:
    """Where these whole lines are between `begin` and `end`. Raises BadSources when they are not there exactly once."""
    found = [match.start() for match in re.finditer(f"(?m)^(?={re.escape(lines)})", content)]  # overlapping ones too
    inside = [start for start in found if begin <= start and start + len(lines) <= end]
    if len(inside) != 1:
        first = lines.splitlines()[0].strip()
        raise BadSources(f"the anchor of an edit of {path} occurs {len(inside)} times, not once: {first!r}")
    return inside[0], inside[0] + len(lines)
