"""Work that keeps the device busy on a stream of its own, for about as long as it is told to.

KIND:BYTES says which: `products`, matrix products in bfloat16, which computing bounds; `adds`, sums of two tensors of
bfloat16, which memory bounds; `copies` within the device, for a device without kernels. BYTES are those of one operand.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from driver import NOT_READY, Address, Size, answer_of, call, timed

_NON_BLOCKING = 1
# A load lasts this many times what it is to outlast takes when idle, and microseconds more.
_MARGIN, _LEAST = 4.0, 5000.0
_CALIBRATION, _MOST = 8, 900  # operations; with more than about a thousand in its queue the driver waits
_FEWEST = 16  # operations: where one takes long, each call may wait for the one that runs


@dataclass(frozen=True)
class Operation:
    """What can be enqueued on a stream of its own."""

    stream: int
    enqueue: Callable[[], object]
    on_stream: Callable[[], AbstractContextManager[object]]  # in which `enqueue` has to be called


class Load:
    """An operation, over and over. The thread has to have a context."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._round(1)  # libraries start, and choose their kernels
        self.microseconds = timed(lambda: self._round(_CALIBRATION)) / _CALIBRATION  # of one operation

    def start(self, idle: float) -> None:
        """Lasts longer than what takes `idle` microseconds on an idle device will take beside it."""
        self._enqueue(min(_MOST, _FEWEST + int((_MARGIN * idle + _LEAST) / self.microseconds)))

    def is_busy(self) -> bool:
        return answer_of("cuStreamQuery", ctypes.c_void_p(self._operation.stream)) == NOT_READY

    def stop(self) -> None:
        call("cuStreamSynchronize", ctypes.c_void_p(self._operation.stream))

    def _round(self, count: int) -> None:
        self._enqueue(count)
        self.stop()

    def _enqueue(self, count: int) -> None:
        with self._operation.on_stream():
            for _ in range(count):
                self._operation.enqueue()


def make(text: str) -> Operation:
    """The operation that KIND:BYTES says, on a new stream."""
    kind, _, size = text.partition(":")
    return _copy(int(size)) if kind == "copies" else _kernel(kind, int(size))


def _copy(nbytes: int) -> Operation:
    stream, source, target = ctypes.c_void_p(), Address(), Address()
    call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    for address in (source, target):
        call("cuMemAlloc_v2", ctypes.byref(address), Size(nbytes))

    def enqueue() -> None:
        call("cuMemcpyDtoDAsync_v2", target, source, Size(nbytes), stream)

    return Operation(stream.value or 0, enqueue, nullcontext)


def _kernel(kind: str, nbytes: int) -> Operation:
    import torch  # here, since a device without kernels needs none of it

    work = {"products": torch.mm, "adds": torch.add}[kind]
    elements = nbytes // 2
    shape = (math.isqrt(elements),) * 2 if kind == "products" else (elements,)
    left, right, result = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    left.fill_(0.5)
    right.fill_(0.25)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    return Operation(stream.cuda_stream, partial(work, left, right, out=result), partial(torch.cuda.stream, stream))
