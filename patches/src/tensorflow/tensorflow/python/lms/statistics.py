"""The functions of ``tf.experimental`` that count a GPU's memory, by the names that existing programs call.

Each takes the index of a GPU among those that the process sees, and returns bytes or a number as an int: -1, and once a
line in the log, where TensorFlow sees no such GPU, this build has no LMS for GPUs, or no operation has used the GPU yet.
What counts events counts since the device was made, or LMS was first enabled for it. :func:`tf.lms.stats` has more, and
has it for the CPU too.

:raises TypeError: the index is not an int.
"""

from __future__ import annotations

import ctypes

from . import _arguments, _devices, _library, _once
from ._kind import Device

__all__ = [
    "get_bytes_active",
    "get_bytes_defragged",
    "get_bytes_in_use",
    "get_bytes_inactive",
    "get_bytes_limit",
    "get_bytes_reclaimed",
    "get_bytes_reservable_limit",
    "get_bytes_reserved",
    "get_current_bytes_reclaimed",
    "get_gpu_host_bytes_in_use",
    "get_gpu_host_peak_bytes_in_use",
    "get_largest_alloc_size",
    "get_num_allocs",
    "get_num_defragmentations",
    "get_num_full_reclaims",
    "get_num_single_reclaims",
    "get_peak_bytes_active",
    "get_peak_bytes_in_use",
    "get_peak_bytes_reclaimed",
    "get_peak_bytes_reserved",
]

# What the C functions fill in, in their order.
_OF_ALLOCATOR = (
    "num_allocs",
    "bytes_in_use",
    "peak_bytes_in_use",
    "largest_alloc_size",
    "bytes_limit",
    "bytes_reserved",
    "peak_bytes_reserved",
    "bytes_reservable_limit",
)
_OF_HOST = ("bytes_in_use", "peak_bytes_in_use")


_UNKNOWN = -1


def _gpu(gpu_id: int) -> Device | None:
    index, kind = _arguments.check_int("gpu_id", gpu_id), _devices.KINDS["gpu"]
    if not kind.in_this_build():
        _once.warn("LMS counts the memory of GPUs, and this build of TensorFlow has no LMS for them: -1")
        return None
    found = _devices.gpus()
    if index not in found:
        _once.warn(f"LMS counts nothing of GPU {index}, since TensorFlow sees {len(found)} GPU(s): -1")
        return None
    return Device(kind, index)


def _counter(function: str, names: tuple[str, ...], wanted: str, index: int) -> int:
    values = (ctypes.c_int64 * len(names))()
    if not getattr(_library.load(), function)(index, values):
        _once.warn("LMS counts nothing of a GPU that no operation has used yet: -1")
        return _UNKNOWN
    return values[names.index(wanted)]


def _of_allocator(name: str, gpu_id: int) -> int:
    found = _gpu(gpu_id)
    return _UNKNOWN if found is None else _counter("lms_tensorflow_gpu_counters", _OF_ALLOCATOR, name, found.index)


def _of_host(name: str, numa_node: int) -> int:
    node = _arguments.check_int("numa_node", numa_node)
    if node < 0 or _gpu(0) is None:  # page-locked memory is what GPUs copy to
        return _UNKNOWN
    return _counter("lms_tensorflow_gpu_host_counters", _OF_HOST, name, node)


def _of_pager(gpu_id: int, *names: str) -> int:
    found = _gpu(gpu_id)
    if found is None:
        return _UNKNOWN
    statistics = _library.statistics(found)
    return sum(statistics[name] for name in names)


# ---------------------------------------------------------------------- TensorFlow's allocator and LMS, taken together


def get_num_allocs(gpu_id: int) -> int:
    """The number of requests for memory."""
    return _of_allocator("num_allocs", gpu_id)


def get_bytes_in_use(gpu_id: int) -> int:
    """Bytes that tensors occupy in the GPU's memory."""
    return _of_allocator("bytes_in_use", gpu_id)


def get_peak_bytes_in_use(gpu_id: int) -> int:
    """The peak of :func:`get_bytes_in_use`."""
    return _of_allocator("peak_bytes_in_use", gpu_id)


def get_largest_alloc_size(gpu_id: int) -> int:
    """The bytes of the largest request to TensorFlow's own allocator, which gets those that LMS does not manage."""
    return _of_allocator("largest_alloc_size", gpu_id)


def get_bytes_limit(gpu_id: int) -> int:
    """The bytes of the GPU's memory that tensors may occupy; 0: there is no limit."""
    return _of_allocator("bytes_limit", gpu_id)


def get_bytes_reserved(gpu_id: int) -> int:
    """Bytes taken from the driver."""
    return _of_allocator("bytes_reserved", gpu_id)


def get_peak_bytes_reserved(gpu_id: int) -> int:
    """The peak of :func:`get_bytes_reserved`."""
    return _of_allocator("peak_bytes_reserved", gpu_id)


def get_bytes_reservable_limit(gpu_id: int) -> int:
    """The bytes that may be taken from the driver; 0: there is no limit."""
    return _of_allocator("bytes_reservable_limit", gpu_id)


def get_gpu_host_bytes_in_use(numa_node: int) -> int:
    """Bytes of page-locked host memory on a NUMA node that TensorFlow uses, and what LMS has paged out to there."""
    return _of_host("bytes_in_use", numa_node)


def get_gpu_host_peak_bytes_in_use(numa_node: int) -> int:
    """The peak of :func:`get_gpu_host_bytes_in_use`."""
    return _of_host("peak_bytes_in_use", numa_node)


# --------------------------------------------------------------------------------------------- what LMS manages


def get_bytes_active(gpu_id: int) -> int:
    """Bytes of managed tensors that operations use now, or have just made."""
    return _of_pager(gpu_id, "pinned_bytes.current", "protected_bytes.current")


def get_peak_bytes_active(gpu_id: int) -> int:
    """An upper bound of what :func:`get_bytes_active` has been: the peak of what was in the GPU's memory."""
    return _of_pager(gpu_id, "resident_bytes.peak")


def get_bytes_inactive(gpu_id: int) -> int:
    """Bytes of managed tensors in the GPU's memory that nothing uses now: they may leave."""
    return _of_pager(gpu_id, "inactive_bytes.current")


def get_bytes_reclaimed(gpu_id: int) -> int:
    """Bytes of tensors that have left the GPU's memory, each time counted."""
    return _of_pager(gpu_id, "out.bytes", "clean_drop.bytes")


def get_current_bytes_reclaimed(gpu_id: int) -> int:
    """Bytes of tensors that are outside of the GPU's memory now."""
    return _of_pager(gpu_id, "away_bytes.current")


def get_peak_bytes_reclaimed(gpu_id: int) -> int:
    """The peak of :func:`get_current_bytes_reclaimed`."""
    return _of_pager(gpu_id, "away_bytes.peak")


def get_num_single_reclaims(gpu_id: int) -> int:
    """How often one tensor left to make room for another."""
    return _of_pager(gpu_id, "requests.one_out")


def get_num_full_reclaims(gpu_id: int) -> int:
    """How often everything that could leave had left, and that was not enough: the limit was passed."""
    return _of_pager(gpu_id, "over_limit.requests")


def get_num_defragmentations(gpu_id: int) -> int:
    """0: memory that is free in several pieces serves one large request, so nothing is ever moved together."""
    return _of_pager(gpu_id)


def get_bytes_defragged(gpu_id: int) -> int:
    """0, as :func:`get_num_defragmentations`."""
    return _of_pager(gpu_id)
