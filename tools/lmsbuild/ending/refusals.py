"""What the system refuses where no part of the tool expects it, as a sentence.

The last resort: whoever opens a file of the user's says more about it. What is no error of the system's, and no module that
is missing or damaged, is a fault of the tool, and shows its traceback.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from lmsbuild.errors import NO_SPACE, Failure, NoSpace, NotLoaded, SystemRefused

_OTHER_FOLDERS = "choose other folders with --output and LMSBUILD_CACHE"
_MEMORY = "close other programs, or raise the limit with `ulimit -v unlimited`"
# What to do, by the error.
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files, for instance with `ulimit -n 1024`",
    errno.ENFILE: "close other programs, or raise the machine's limit of open files, fs.file-max",
    errno.EAGAIN: "close other programs, or raise the limit of processes with `ulimit -u`",
    errno.ENOMEM: _MEMORY,
    errno.ELOOP: "remove the links that lead to each other, or name another path",
    errno.ENAMETOOLONG: f"take a shorter path, or {_OTHER_FOLDERS}",
    errno.E2BIG: "make the variables of the environment, or the list of files, shorter",
    errno.ENOEXEC: "it is no program that this machine can run: name another one",
    errno.EINVAL: "name another path",
    errno.ENOENT: "another program may have removed it: run the command again",
    errno.EACCES: f"ask for the permission, or {_OTHER_FOLDERS}",
    errno.EPERM: f"ask for the permission, or {_OTHER_FOLDERS}",
    errno.EIO: "the disk or the network file system has a fault: look at the system's log",
    errno.ESTALE: "the network file system has lost it: run the command again",
}
_NEXT = f"mend that, or {_OTHER_FOLDERS}"
_INSTALL = "install lmsbuild again, with `pip install --force-reinstall`, or remove what stands in for a part of it on PYTHONPATH"


@contextmanager
def refused() -> Iterator[None]:
    """Raises SystemRefused or NotLoaded in place of what the system, or the loading of modules, raised in the block."""
    try:
        yield
    except OSError as error:
        raise explained(error) from error
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # as Path.resolve has it before Python 3.13
            raise
        raise SystemRefused(f"{error}: {_REMEDIES[errno.ELOOP]}") from error
    except MemoryError as error:
        raise SystemRefused(f"there is not enough memory: {_MEMORY}") from error
    except (ImportError, SyntaxError, AttributeError) as error:
        if isinstance(error, AttributeError) and not _is_from_loading(error):
            raise
        raise NotLoaded(f"a part of lmsbuild cannot be loaded: {_first_line(error)}; {_INSTALL}") from error


def explained(error: OSError) -> Failure:
    """The failure for an error of the system's."""
    if error.errno == errno.ENOENT and error.filename is None and _folder_is_gone():
        return SystemRefused("the current folder was removed: change to another one")
    if error.errno == errno.ENOENT and error.filename is None:
        return SystemRefused(f"{error.strerror}: name a folder that you may write to in TMPDIR")
    reason = error.strerror or _first_line(error)
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes, os.PathLike)) else ""
    if error.errno in NO_SPACE:
        return NoSpace(name or "the disk", reason)
    where = f"{name}: {reason}" if name else reason
    return SystemRefused(f"the system refused something: {where}; {_REMEDIES.get(error.errno or 0, _NEXT)}")


def _is_from_loading(error: BaseException) -> bool:
    """Whether a module was being loaded, at whatever moment of the run: the traceback shows its text, or what loads it."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "<module>" or code.co_filename.startswith("<frozen importlib"):
            return True
        trace = trace.tb_next
    return False


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
