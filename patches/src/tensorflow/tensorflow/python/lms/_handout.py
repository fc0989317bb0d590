"""Memory that leaves TensorFlow without being copied, kept resident meanwhile.

On the CPU a NumPy array may share the memory of the tensor that it was made of. It works without this, since a fault
brings a block back, and so does a system call; but what is used for long had better stay. So what TensorFlow hands out
pins its block while it lives.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorflow.python.framework import dtypes, errors, ops, tensor_util
from tensorflow.python.util import nest

from . import _devices, _library
from ._kind import Device
from ._wrapping import Row, apply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Method = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ arrays

_CPU = Device(_devices.KINDS["cpu"], 0)


def _keep_resident(array: Any) -> Any:
    """Pins the block that an array's memory is in, as long as the array object lives; views of it keep that alive."""
    pager = _library.pager(_CPU) if isinstance(array, np.ndarray) and array.nbytes > 0 else None
    if pager is not None:
        address = array.__array_interface__["data"][0]
        token = _library.pin(pager, address, array.flags.writeable)
        if token is not None:
            weakref.finalize(array, _library.unpin, pager, token).atexit = False
    return array


def _gives_array(stock: _Method) -> _Method:
    def gives_array(*args: Any, **kwargs: Any) -> Any:
        return _keep_resident(stock(*args, **kwargs))

    return gives_array


def _gives_arrays(stock: _Method) -> _Method:
    def gives_arrays(*args: Any, **kwargs: Any) -> Any:
        arrays = stock(*args, **kwargs)
        for array in arrays if isinstance(arrays, (list, tuple)) else ():
            _keep_resident(array)
        return arrays

    return gives_arrays


def _takes_arrays(stock: _Method) -> _Method:
    """What calls the program's own function with arrays, for ``tf.numpy_function``."""

    def takes_arrays(self: Any, token: Any, device: Any, args: Any) -> Any:
        for array in args:
            _keep_resident(array)
        return stock(self, token, device, args)

    return takes_arrays


# ------------------------------------------------------------------------------------------------ DLPack

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _managed(capsule: Any) -> tuple[int, int]:
    """The DLManagedTensor of a capsule that was not taken yet, and the address of its tensor's memory."""
    managed = _get_pointer(capsule, b"dltensor")
    return managed, ctypes.c_void_p.from_address(managed).value or 0  # which is what it begins with


def _gives_capsule(stock: _Method) -> _Method:
    def gives_capsule(tensor: Any) -> Any:
        capsule = stock(tensor)
        managed, address = _managed(capsule)
        pager = _library.owner(address)
        if pager is not None:
            _library.check(_library.load().lms_tensorflow_pin_dlpack(pager, managed))
        return capsule

    return gives_capsule


# ------------------------------------------------------------------------------------------------ buffers

# In CPython's structure of a type, in words: where its functions for buffers are, and its flags.
_AS_BUFFER, _FLAGS = 20, 21

_stock_getbuffer: int | None = None  # while another function stands in its place


class _Raised(threading.local):
    """What the thread's last failure to hand out a buffer was."""

    error: Exception | None = None
    type_and_error: Any = None  # their addresses


_raised = _Raised()


@ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
def _exported(owner: Any, address: int) -> int | None:
    try:
        _keep_resident(owner)
    except errors.ResourceExhaustedError:
        return None  # a fault brings the block back
    except (OSError, RuntimeError, ValueError) as error:
        _raised.error = error.with_traceback(None)  # whose frames would keep the buffer
        _raised.type_and_error = (ctypes.c_size_t * 2)(id(type(error)), id(error))
        return ctypes.addressof(_raised.type_and_error)
    return None


def _buffer_slot() -> ctypes.c_void_p | None:
    """EagerTensor's function for buffers, which memoryview() and np.asarray() call and nothing in Python can replace.

    None: this release has none, or this interpreter's types have another structure.
    """
    words = (ctypes.c_size_t * (_FLAGS + 1)).from_address(id(ops.EagerTensor))
    if words[_FLAGS] != ops.EagerTensor.__flags__ or words[_AS_BUFFER] == 0:
        return None
    slot = ctypes.c_void_p.from_address(words[_AS_BUFFER])
    return slot if slot.value else None


def _watch_buffers(active: bool) -> None:
    global _stock_getbuffer
    slot = _buffer_slot()
    if slot is None or active == (_stock_getbuffer is not None):
        return
    if active:
        _stock_getbuffer = slot.value
        python = ctypes.pythonapi
        slot.value = _library.load().lms_tensorflow_watch_buffers(
            _stock_getbuffer, _exported, python.PyBuffer_Release, python.PyErr_SetObject
        )
    else:
        slot.value, _stock_getbuffer = _stock_getbuffer, None


# ------------------------------------------------------------------------------------------------ switching

_ROWS = frozenset(
    [
        Row(("cpu",), "tensorflow.python.framework.ops:EagerTensor", "_numpy_internal", _gives_array),
        Row(("cpu",), "tensorflow.python.ops.script_ops:FuncRegistry", "__call__", _takes_arrays),
        Row(("cpu", "gpu"), "tensorflow.python.pywrap_tfe", "TFE_ToDlpackCapsule", _gives_capsule),
        *(
            Row(("cpu",), "tensorflow.python.client.session:tf_session", name, _gives_arrays)
            for name in ("TF_SessionRun_wrapper", "TF_SessionPRun_wrapper", "TF_SessionRunCallable")
        ),
    ]
)

_always: frozenset[Row] = frozenset()


def watch_sessions(made: Callable[[], None]) -> None:
    """Calls ``made`` after every session: its devices may use LMS, since its ConfigProto said so."""
    global _always

    def makes_devices(stock: _Method) -> _Method:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, *args, **kwargs)
            made()

        return init

    _always = frozenset(
        [Row(("cpu", "gpu"), "tensorflow.python.client.session:BaseSession", "__init__", makes_devices)]
    )
    apply(set(_always))
    atexit.register(watch, False)  # while there is an interpreter for what stands in for TensorFlow's own functions


def watch(active: bool) -> None:
    """Keeps what leaves TensorFlow resident from now on, or no longer."""
    apply(set(_always | _ROWS if active else _always))
    _watch_buffers(active)


# ------------------------------------------------------------------------------------------------ tensors

_NEVER_PAGED = (dtypes.string, dtypes.resource, dtypes.variant)
_is_tf_type = getattr(tensor_util, "is_tf_type", None) or tensor_util.is_tensor  # the new name, from 2.4 on


def _of_tensorflow(value: Any) -> Any:
    """The tensor or variable that it is, or that Keras keeps in it; None: it is no such thing."""
    if _is_tf_type(value):
        return value
    inner = getattr(value, "value", None)
    return inner if _is_tf_type(inner) else None


def is_tensor(value: Any) -> bool:
    return _of_tensorflow(value) is not None


def _eager_tensors(value: Any) -> Iterator[ops.EagerTensor]:
    for each in nest.flatten(_of_tensorflow(value), expand_composites=True):
        tensor = each.read_value() if hasattr(each, "read_value") else each  # shares the variable's memory
        if isinstance(tensor, ops.EagerTensor) and tensor.dtype not in _NEVER_PAGED:
            yield tensor


def address_on_device(tensor: ops.EagerTensor) -> int:
    """Where the tensor's memory is, on whatever device."""
    try:
        from tensorflow.python import pywrap_tfe
    except ImportError:  # before 2.2, which brought DLPack
        raise RuntimeError(
            "TensorFlow 2.1 does not tell where on a GPU a tensor is: tf.lms.pin takes the CPU's"
        ) from None

    return _managed(pywrap_tfe.TFE_ToDlpackCapsule(tensor))[1]


def _address_on_host(tensor: ops.EagerTensor) -> int:
    array = tensor._numpy()
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else 0  # of a scalar this is a copy


class Pins:
    """The memory of eager tensors and variables, resident until :meth:`end`."""

    def __init__(self, tensors: Any) -> None:
        self._pins: list[tuple[int, _library.PinToken]] = []
        try:
            for value in tensors if _library.pagers() else ():
                for tensor in _eager_tensors(value):
                    self._add(tensor)
        except BaseException:
            self.end()
            raise

    def _add(self, tensor: ops.EagerTensor) -> None:
        name = _devices.type_of(tensor.backing_device)
        if name not in _devices.KINDS:
            return
        address = _address_on_host(tensor) if name == "cpu" else address_on_device(tensor)
        pager = _library.owner(address)  # which the number of a logical GPU would not tell
        token = None if pager is None else _library.pin(pager, address, True)
        if pager is not None and token is not None:
            self._pins.append((pager, token))

    def end(self) -> None:
        while self._pins:
            _library.unpin(*self._pins.pop())
