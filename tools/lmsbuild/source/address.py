"""Addresses of repositories: by which protocol git reaches one, and what a relative one means."""

from __future__ import annotations

import re
from urllib.parse import unquote

from lmsbuild.errors import UnsafeSource

# What git may speak when it was asked for an address of the protocol. Servers redirect http to https.
_SPOKEN = {"file": "file", "git": "git", "http": "http:https", "https": "https", "ssh": "ssh"}

SUBMODULES = ("https",)  # the protocols that .gitmodules may name


def protocol(address: str) -> str:
    """The protocol of an address as git reads it. Raises UnsafeSource when it is none of those that transfer alone."""
    if address.startswith("-") or not address.isprintable():
        raise UnsafeSource(
            f"{address!r} is no address of a repository: it begins with a hyphen, or has control characters"
        )
    scheme = re.match(r"([\w+.-]*)(::|://)", address)
    if scheme:
        found = scheme[1] if scheme[2] == "://" else scheme[0]
    else:
        found = "ssh" if ":" in address.partition("/")[0] else "file"
    if found not in _SPOKEN:
        raise UnsafeSource(
            f"{address} is an address by {found}, for which git runs another program: give one by {', '.join(_SPOKEN)}"
        )
    return found


def spoken(address: str) -> str:
    """The protocols that git may speak for this address, with colons between them. Raises UnsafeSource."""
    return _SPOKEN[protocol(address)]


def local_path(address: str) -> str | None:
    """The path that an address on this machine names, or None. Raises UnsafeSource."""
    if protocol(address) != "file":
        return None
    if not address.startswith("file://"):
        return address
    return unquote("/" + address.removeprefix("file://").partition("/")[2])


def is_relative(address: str) -> bool:
    """Whether a submodule's address is relative to that of the tree's own repository."""
    return address.startswith(("./", "../"))


def resolved(base: str, relative: str) -> str:
    """What a submodule's address means in a repository that came from `base`, as `git submodule` reads it."""
    if not is_relative(relative):
        return relative
    base, joint = base.rstrip("/"), "/"
    while is_relative(relative):
        step, _, relative = relative.partition("/")
        if step == "..":
            cut = max(base.rfind("/"), base.rfind(":") if "/" not in base else -1)
            joint, base = (base[cut], base[:cut]) if cut >= 0 else ("/", ".")
    return f"{base}{joint}{relative}".rstrip("/")
