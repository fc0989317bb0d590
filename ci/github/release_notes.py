"""Prints the section of CHANGELOG.md for a version: the text of its release.

``python ci/github/release_notes.py 0.1.0``; a "v" before the version, as tags have it, is no part of it.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
_HEADING = re.compile(r"^## +\[?([^\]\s]+)\]?.*$", re.MULTILINE)


def section(text: str, version: str) -> str:
    """What the changelog says of a version, without its heading. Raises ValueError when that is nothing."""
    headings = list(_HEADING.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading[1] == version:
            found = text[heading.end() : following.start() if following else len(text)].strip()
            if not found:
                raise ValueError(f"the section of {version} is empty: write what has changed")
            return found
    known = ", ".join(heading[1] for heading in headings)
    raise ValueError(f"there is no section '## {version}', but {known}: give [Unreleased] that name")


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints what CHANGELOG.md says of a version.")
    parser.add_argument("version", help="such as 0.1.0")
    parser.add_argument("--changelog", type=Path, default=CHANGELOG, help="another file")
    options = parser.parse_args()
    try:
        print(section(options.changelog.read_text(encoding="utf-8"), options.version.removeprefix("v")))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {options.changelog}: {error}")


if __name__ == "__main__":
    main()
