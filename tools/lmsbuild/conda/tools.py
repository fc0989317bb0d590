"""The packages that conda packages are made and read with, which `lmsbuild[conda]` brings: imported where they are used."""

from __future__ import annotations

from typing import Any

from lmsbuild.errors import NoCondaTools


def rattler() -> Any:
    """py-rattler. Raises NoCondaTools."""
    try:
        import rattler
    except ImportError as error:
        raise missing("py-rattler") from error
    return rattler


def zstandard() -> Any:
    """Raises NoCondaTools."""
    try:
        import zstandard
    except ImportError as error:
        raise missing("zstandard") from error
    return zstandard


def missing(package: str) -> NoCondaTools:
    """The failure that says how to install it."""
    return NoCondaTools(f"the package {package} is not installed: `pip install 'lmsbuild[conda]'` installs it")
