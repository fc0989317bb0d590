"""The devices on which tensors are paged: LMS enabled or disabled there, their limit, and what was paged.

Sizes are in bytes. Nothing here makes a device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf
from tensorflow.python.lms import _devices

from . import log

if TYPE_CHECKING:
    from collections.abc import Iterator

RATIO = "TF_LMS_SIMULATOR_MEM_RATIO"
_GIB = 1 << 30
_LEAST = 1 << 20


def enable() -> None:
    """Enables LMS where that is possible; where it is too late, the log says what to do. TF_LMS_ENABLED=0 keeps it off."""
    if os.environ.get("TF_LMS_ENABLED", "").lower() in ("0", "false"):
        log.info_once("TF_LMS_ENABLED is 0 in the environment: LMS is off.")
        return
    try:
        tf.config.experimental.set_lms_enabled(True)
    except RuntimeError as error:
        log.warn(
            "LMS stays disabled, since TensorFlow has its devices already: import this module before the first operation "
            "and before any session, or set TF_LMS_ENABLED=1 in the environment before TensorFlow is imported, which needs "
            f"no change of the program ({error})"
        )


def disable() -> None:
    try:
        tf.config.experimental.set_lms_enabled(False)
    except RuntimeError as error:
        log.warn(f"LMS could not be disabled: {error}")


def enabled() -> Iterator[str]:
    """The names of the devices for which LMS is enabled, such as "cpu" or "gpu:0"."""
    return filter(tf.lms.is_enabled, _names())


def _names() -> list[str]:
    return ["cpu", *(f"gpu:{_devices.parse(device)[1]}" for device in tf.config.list_physical_devices("GPU"))]


# ------------------------------------------------------------------------------------------------ the limit


def set_limit(nbytes: int) -> None:
    """Sets the limit of each GPU, or of the CPU where there is none."""
    try:
        tf.config.experimental.set_lms_limit(nbytes)
    except (OSError, RuntimeError) as error:
        log.warn(f"the limit stays as it is: {error}")


def limit(assumed: float | None) -> int | None:
    """What auto-tuning would have assumed as the device's memory; None: nothing was said of it.

    :param assumed: GiB, ``autotune_gpu_mem``.
    :raises ValueError: TF_LMS_SIMULATOR_MEM_RATIO is set and no number above 0 and up to 1.
    """
    ratio = _ratio()
    memory = None if assumed is None else int(assumed * _GIB)
    if memory is None and ratio is not None:
        memory = _memory()
        if memory is None:
            log.warn(f"{RATIO} has no effect: there is neither a GPU nor a limit for the CPU")
    # A limit of 0 would be the default.
    return memory if memory is None or ratio is None else max(int(memory * ratio), _LEAST)


def _ratio() -> float | None:
    text = os.environ.get(RATIO)
    try:
        ratio = None if text is None else float(text)
    except ValueError:
        ratio = 0.0
    if ratio is not None and not 0 < ratio <= 1:
        raise ValueError(f"{RATIO}: expected a number above 0 and up to 1, got {text!r}")
    return ratio


def _memory() -> int | None:
    """The memory of the first GPU, or the limit of TensorFlow's own allocator on the CPU; None: neither is known."""
    for device in tf.config.list_physical_devices("GPU")[:1]:
        try:
            return _devices.KINDS["gpu"].memory(_devices.parse(device)[1])
        except (OSError, RuntimeError, ValueError) as error:
            log.warn(f"the GPU's memory is not known: {error}")
            return None
    mib = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    used = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    return int(mib) << 20 if used and mib.isdigit() else None


def limit_in_words(device: str) -> str:
    nbytes = tf.lms.stats(device)["limit_bytes"] or tf.config.experimental.get_lms_limit()
    return in_words(nbytes) if nbytes else "what is free when TensorFlow makes the device, less 5 %"


def in_words(nbytes: int) -> str:
    return f"{nbytes / _GIB:.3g} GiB" if nbytes >= _GIB else f"{nbytes / (1 << 20):.3g} MiB"


# ------------------------------------------------------------------------------------------------ what was paged


class Paged(NamedTuple):
    """How many tensors left a device's memory, how many came back, and their bytes."""

    out: int
    out_bytes: int
    back: int
    back_bytes: int

    def since(self, before: Paged) -> Paged:
        return Paged(*(now - then for now, then in zip(self, before)))  # noqa: B905  what Python 3.7 runs, too


_NOTHING = Paged(0, 0, 0, 0)


def paged() -> dict[str, Paged]:
    """What was paged on each device since LMS was enabled there, if it ever was."""
    found = {}
    for name in _names():
        of = tf.lms.stats(name)
        out, nbytes = of["out.blocks"] + of["clean_drop.blocks"], of["out.bytes"] + of["clean_drop.bytes"]
        if of["limit_bytes"] or tf.lms.is_enabled(name):
            found[name] = Paged(out, nbytes, of["in.blocks"], of["in.bytes"])
    return found


def paged_since(before: dict[str, Paged]) -> dict[str, Paged]:
    return {name: now.since(before.get(name, _NOTHING)) for name, now in paged().items()}
