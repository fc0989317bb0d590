"""The functions of ``tf.config.experimental`` that switch Large Model Support on for every device that can use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _arguments, _library, _lock, _once, _switched

if TYPE_CHECKING:
    from ._sizes import Size

_limit = 0
_defrag_enabled = False


def set_lms_enabled(lms_enabled: bool) -> None:
    """Enables or disables Large Model Support: for every GPU, and for the CPU if it is given a limit.

    The CPU's limit is that of TensorFlow's own allocator there, where ``TF_CPU_ALLOCATOR_USE_BFC=1`` and
    ``TF_CPU_BFC_MEM_LIMIT_IN_MB`` are in the environment, or on a machine without a GPU what :func:`set_lms_limit`
    said. Applies to devices that exist, to those that are made later, and to sessions. After ``set_lms_enabled(False)``
    a session whose ``ConfigProto.gpu_options.experimental.lms_enabled`` is true is an error.

    ``tf.lms.enable`` does the same for one device, with more options.

    Where there is neither a GPU nor a limit for the CPU it has no effect before there is one; the log says so once.

    :param lms_enabled: whether tensors that are allocated from now on may be paged out.
    :raises RuntimeError: a device cannot do it; nothing changed.
    """
    _arguments.check_bool("lms_enabled", lms_enabled)
    with _lock:
        try:
            _library.check(_library.load().lms_tensorflow_set_enabled(int(lms_enabled)))
        finally:  # a device that could not be switched off is still watched
            _switched()


def get_lms_enabled() -> bool:
    """Returns what :func:`set_lms_enabled` set; False at first."""
    return _library.load().lms_tensorflow_enabled() == 1


def set_lms_limit(limit: Size) -> None:
    """Sets the bytes of each GPU's memory, or on a machine without a GPU of the CPU's, that large tensors may occupy.

    What more they need is paged out. Applies at once to what :func:`set_lms_enabled` or a session has enabled.

    :param limit: bytes, at least 0, or text such as "8GiB". 0, which it is at first: on a GPU what is free there, less 5 %; on the CPU the limit
        of TensorFlow's own allocator. ``"auto"``: the same on a GPU; on the CPU what :func:`tf.lms.enable` says of it.
    :raises OSError: the store could not be written; what was to leave is still resident, and the limit is as before.
    :raises RuntimeError: 0, for a CPU whose own allocator has no limit; or a GPU has failed.
    """
    global _limit
    nbytes = _arguments.UINT64_MAX if _arguments.is_auto(limit) else _arguments.check_limit("limit", limit, None)
    with _lock:
        _library.check(_library.load().lms_tensorflow_set_limit(nbytes))
        _limit = nbytes


def get_lms_limit() -> int:
    """Returns what :func:`set_lms_limit` set, in bytes; 2**64 - 1 for "auto"."""
    return _limit


def set_lms_defrag_enabled(lms_defrag_enabled: bool) -> None:
    """Has no effect: memory that is free in several pieces serves a large request as it is, so nothing is moved together.

    Programs for TensorFlow 2.1 call it. The same holds for ``gpu_options.experimental.lms_defrag_enabled``.
    """
    global _defrag_enabled
    _defrag_enabled = _arguments.check_bool("lms_defrag_enabled", lms_defrag_enabled)
    _once.warn("set_lms_defrag_enabled has no effect: memory that is free in several pieces serves any request")


def get_lms_defrag_enabled() -> bool:
    """Returns what :func:`set_lms_defrag_enabled` set; False at first."""
    return _defrag_enabled
