"""What programs for TFLMS 1 and 2 tune: when tensors leave and come back, and which of them stay.

tensorflow_large_model_support gives these their old names; the limit decides where nothing is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _arguments, _library

if TYPE_CHECKING:
    from collections.abc import Iterable


def set_distances(out_least: int = 0, in_least: int = 0, in_most: int | None = None, early_out: bool = True) -> None:
    """Bounds, in operations of the program, for all devices, and for those that are made later. They yield to need.

    :param out_least: a tensor leaves between two uses that are farther apart.
    :param in_least: so long before its next use a tensor comes back, if there is room then.
    :param in_most: and not sooner than that; 0: when it is used; None: as soon as there is room.
    :param early_out: whether tensors leave before memory is short.
    """
    most = _arguments.UINT64_MAX if in_most is None else in_most
    _library.load().lms_tensorflow_set_distances(out_least, in_least, most, int(early_out))


def keep_resident(
    excl_scopes: Iterable[str] = (),
    excl_types: Iterable[str] = (),
    excl_names: Iterable[str] = (),
    incl_scopes: Iterable[str] = (),
    incl_types: Iterable[str] = (),
) -> None:
    """Keeps what operations put out from now on resident: those whose name begins with a scope, or has a type or a name.

    With ``incl_scopes`` or ``incl_types``, the outputs of all others stay as well. Replaces what was asked before.
    """
    lists = (excl_scopes, excl_types, excl_names, incl_scopes, incl_types)
    _library.load().lms_tensorflow_keep_resident(*("\n".join(sorted(each)).encode() for each in lists))
