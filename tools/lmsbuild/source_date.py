"""The date that what is built bears instead of today's, so that building it again gives the same bytes.

$SOURCE_DATE_EPOCH, as reproducible-builds.org specifies it: seconds since 1970 in decimal digits.
"""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timezone

from lmsbuild.errors import BadSetting

Date = tuple[int, int, int, int, int, int]  # year to second, UTC, as archives hold it
EARLIEST = 315532800  # 1980-01-01, the first date that an archive can hold
LATEST = 4354819198  # 2107-12-31, the last one
_SECONDS = re.compile(r"[0-9]{1,10}")


def chosen() -> int | None:
    """The seconds that the user chose; None when he chose none. Raises BadSetting."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not _SECONDS.fullmatch(text) or int(text) > LATEST:
        raise BadSetting(
            f"SOURCE_DATE_EPOCH is {text[:40]!r}: set it to seconds since 1970, such as the output of `git log -1 --format=%ct`"
        )
    return int(text)


def archive_date(seconds: int) -> Date:
    """The date as archives hold it, which is no earlier than 1980."""
    year, month, day, hour, minute, second = time.gmtime(max(seconds, EARLIEST))[:6]
    return year, month, day, hour, minute, second


def seconds_of(date: Date) -> int:
    """Seconds since 1970 of an archive's date; that of its first day when it is none."""
    try:
        return int(datetime(*date, tzinfo=timezone.utc).timestamp())
    except ValueError:
        return EARLIEST


def of(date: Date) -> int:
    """The seconds that the user chose, or else those of an archive's date."""
    seconds = chosen()
    return seconds_of(date) if seconds is None else seconds
