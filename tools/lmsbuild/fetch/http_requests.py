"""Requests to servers: a hiccup of the network is waited out, for half a minute, and then said in one sentence.

A hiccup is a name that does not resolve, a connection that is refused, reset or silent, an answer that ends early, and a
server that says it is busy (429 or 5xx). Every other answer is final. A server that stays silent is given up after less than
two minutes.
"""

from __future__ import annotations

import functools
import re
import ssl
import urllib.parse
from collections.abc import Callable
from typing import TypeVar

import requests
from urllib3 import BaseHTTPResponse, Retry
from urllib3.exceptions import InvalidHeader, LocationParseError, MaxRetryError

from lmsbuild import report
from lmsbuild.errors import DownloadFailed
from lmsbuild.fetch import patience, pip_command

Answer = TypeVar("Answer")
Session = requests.Session

_TIMEOUTS = (10.0, 15.0)  # seconds: to connect, and without a byte
_LONGEST = 10.0  # seconds of one wait
# Waits 0, 2, 4, 8 and 10 seconds, or what the server asks for.
_PATIENCE = Retry(
    total=5,
    allowed_methods=None,
    status_forcelist=(429, 500, 502, 503, 504),
    backoff_factor=1,
    backoff_max=_LONGEST,
)
_HICCUPS = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
)


class Refused(DownloadFailed):
    """The server answered, and what it said is final."""


def get(
    session: Session,
    address: str,
    read: Callable[[requests.Response], Answer],
    headers: Callable[[], dict[str, str]] = dict,
) -> Answer:
    """What `read` makes of the answer, whose status is 2xx or 416; `read` and `headers` are called anew for each attempt.

    `read` reads the body by iter_content(), so that an answer that ends early is a hiccup. Thread-safe if the session is
    one thread's. Raises DownloadFailed, as Refused when the server said no.
    """
    name = file_name(address) or address
    policy = _PATIENCE
    while True:
        busy: BaseHTTPResponse | None = None
        cause: Exception | None = None
        try:
            # A proxy, and a password in ~/.netrc, are found in the environment by the library.
            with session.get(
                address,
                headers={"Accept-Encoding": "identity", **headers()},
                stream=True,
                timeout=_TIMEOUTS,
                verify=_certificates(),
            ) as answer:
                if not policy.is_retry("GET", answer.status_code):
                    if not answer.ok and answer.status_code != requests.codes.requested_range_not_satisfiable:
                        raise Refused(f"cannot read {name} from the server: {answer.status_code} {answer.reason}")
                    return read(answer)
                reason, busy = f"{answer.status_code} {answer.reason}", answer.raw
        except requests.exceptions.SSLError as error:
            raise Refused(f"cannot read {name} from the server: {_reason(error)}") from error
        except _HICCUPS as error:
            reason, cause = _reason(error), error
        except (requests.exceptions.RequestException, LocationParseError) as error:
            raise Refused(f"cannot read {name} from the server: {error}") from error
        asked = _asked(busy)
        try:
            policy = policy.increment("GET", address, response=busy, error=cause)
            if asked is not None and asked > _LONGEST:
                raise DownloadFailed(
                    f"cannot read {name} from the server: {reason}; it asks to try again in {asked:.0f} seconds"
                ) from cause
        except MaxRetryError:
            raise DownloadFailed(
                f"cannot read {name} from the server: {reason}, {len(policy.history) + 1} times: check the network"
            ) from cause
        report.note(f"{name}: {reason}; trying again")
        patience.pause(policy.get_backoff_time() if asked is None else asked)


def file_name(address: str) -> str:
    """The last part of the path; empty for what is no address."""
    try:
        path = urllib.parse.urlsplit(address).path
    except ValueError:
        return ""
    return urllib.parse.unquote(path.rsplit("/", 1)[-1])


def _reason(error: BaseException) -> str:
    """What the system or the server said, without the layers of library around it."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error)


def _asked(busy: BaseHTTPResponse | None) -> float | None:
    """For how many seconds the server asks to be left alone, if it says so in a form that can be read."""
    try:
        return _PATIENCE.get_retry_after(busy) if busy is not None else None
    except InvalidHeader:
        return None


@functools.cache
def _certificates() -> str | bool:
    """The file or folder of certificates that pip is configured to trust, or the system's; True: the library's own."""
    found = re.search(r"^\S*\bcert='(.+)'$", pip_command.configuration(), re.MULTILINE)
    system = ssl.get_default_verify_paths()
    return found[1] if found else system.cafile or system.capath or True
