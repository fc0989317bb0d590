"""What pyelftools raises about a file that is damaged, or no ELF file, as one failure with the file's name."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError

from lmsbuild.errors import DamagedWheel, Failure

# It trusts most of what it reads: offsets, sizes, indices, links between sections and the names of their types.
_RAISED = (
    *(ELFError, ConstructError, zlib.error, AssertionError, RecursionError),
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError, MemoryError),
)


@contextmanager
def broken(name: str, kind: type[Failure] = DamagedWheel, what: str = "library") -> Iterator[None]:
    """Raises `kind` when the file that is read in the block, `name`, is broken. In the block nothing else may be done."""
    try:
        yield
    except _RAISED as error:
        raise kind(f"{name} is no {what}, or damaged: {error or type(error).__name__}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # an offset that no file can have
            raise
        raise kind(f"{name} is no {what}, or damaged: it refers to what is before its beginning") from error
