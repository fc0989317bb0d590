"""Memory that PyTorch hands to code which does not go through the dispatcher, kept resident meanwhile.

On the CPU such code works without this: a fault brings a block back, and so does a system call. But what is used for
long had better stay. On CUDA nothing serves a fault: a kernel that reaches a block which is away fails. So a view for
NumPy, CuPy, Numba or DLPack pins its block while it lives, and a kernel that Triton launches and a compiled graph pin
what they are given.

A pin counts as a write. Those of views are good for every stream; those of launches, which know theirs, for the
current one.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from . import _devices, _library
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Method = Callable[..., Any]


# Before 2.0 a dispatch mode cannot be kept from seeing an operator.
_without_dispatch_modes = getattr(torch._C, "_DisableTorchDispatch", contextlib.nullcontext)
if not hasattr(_without_dispatch_modes, "__enter__"):
    _without_dispatch_modes = contextlib.nullcontext
_without_functions = getattr(torch._C, "DisableTorchFunction", contextlib.nullcontext)  # from 1.5 on


def _unseen(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what the program did not call: no mode, no subclass and no tracer of ``torch.jit.trace`` sees it."""
    with _without_functions(), _without_dispatch_modes():
        tracing = torch._C._get_tracing_state()
        if tracing is None:
            return function(*arguments)
        torch._C._set_tracing_state(None)
        try:
            return function(*arguments)
        finally:
            torch._C._set_tracing_state(tracing)


def pin(tensors: list[torch.Tensor], current_stream: bool, write: bool = True) -> list[int]:
    """Pins the storages of all tensors; the result goes to :func:`unpin` once."""
    return _unseen(torch.ops.lms.pin, tensors, write, current_stream) if tensors else []


def unpin(tokens: list[int], current_stream: bool) -> None:
    if tokens:
        _unseen(torch.ops.lms.unpin, tokens, current_stream)


# ------------------------------------------------------------------------------------------------ views


def _pinned_alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes under a storage that holds a pin, or the tensor itself where they are not LMS's."""
    if _library.owner(tensor.data_ptr()) is None:
        return tensor
    return _unseen(torch.ops.lms.pinned_alias, tensor)


def _numpy(stock: _Method) -> _Method:
    def warned(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            array = stock(*args, **kwargs)
        for warning in said:
            warnings.warn(warning.message, stacklevel=3)
        return array

    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # A tracer warns, of the program's line: it leaves out those of PyTorch's own.
        call = stock if torch._C._get_tracing_state() is None else warned
        array = call(self, *args, **kwargs)  # with every check, and every conversion that `force` asks for
        base = getattr(array, "base", None)  # the tensor that owns the array's memory
        alias = _pinned_alias(base) if type(base) in (torch.Tensor, torch.nn.Parameter) else base
        return array if alias is base else _unseen(stock, alias)

    return numpy


def _to_dlpack(stock: _Method) -> _Method:
    def to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        exported = (
            isinstance(tensor, torch.Tensor)
            and tensor.layout == torch.strided
            and tensor.device.type in _devices.KINDS
            and not tensor.requires_grad
        )
        if exported:
            if kwargs.get("copy"):
                # The copy, too, is read through a raw pointer.
                kwargs, tensor = {**kwargs, "copy": None}, tensor.clone()
            tensor = _pinned_alias(tensor)
        return stock(tensor, *args, **kwargs)

    return to_dlpack


# The pins of tensors that an array interface was asked of, by the tensor object and the memory that it had.
_interfaces: dict[tuple[int, int], weakref.finalize] = {}


def _cuda_array_interface(stock: property) -> property:
    # The interface is a dictionary that owns nothing; its reader keeps the tensor object alive as long as it uses
    # the memory. So the pin lives as long as that object.
    def cuda_array_interface(self: torch.Tensor) -> dict[str, Any]:
        interface = stock.__get__(self)
        address = interface["data"][0]
        key = (id(self), address)
        if key not in _interfaces and address != 0 and _library.owner(address) is not None:

            def drop(tokens: list[int]) -> None:
                del _interfaces[key]
                unpin(tokens, False)

            _interfaces[key] = weakref.finalize(self, drop, pin([self], False))
            _interfaces[key].atexit = False
        return interface

    return property(cuda_array_interface, doc=stock.__doc__)


# ------------------------------------------------------------------------------------------------ calls


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def tensors_among(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of a kernel: also those in sequences, those that a descriptor is based on, and those
    that a tensor of another class, such as a quantized one, is made of."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
            if type(value) not in _PLAIN:
                yield from (part for part in vars(value).values() if isinstance(part, torch.Tensor))
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)
        elif isinstance(getattr(value, "base", None), torch.Tensor):  # TensorDescriptor, TensorWrapper
            yield value.base


def _launch(call: Callable[[], Any], arguments: Any, stream: int | None) -> Any:
    """Makes a call that launches a kernel with these arguments, on the stream with that handle or on the current one."""
    tensors = [tensor for tensor in tensors_among(arguments) if tensor.is_cuda]
    if stream is None:
        stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
    current = all(torch._C._cuda_getCurrentRawStream(tensor.device.index) == stream for tensor in tensors)
    tokens = pin(tensors, current)
    try:
        return call()
    finally:
        unpin(tokens, current)


def _triton_function(stock: _Method) -> _Method:
    """``kernel[grid](...)``, whatever decorates the kernel."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _launch(lambda: stock(self, *args, **kwargs), (args, tuple(kwargs.values())), None)

    return run


def _triton_binary(stock: _Method) -> _Method:
    """The same for a kernel that the program compiled beforehand."""

    def getitem(self: Any, grid: Any) -> Any:
        runner = stock(self, grid)

        def run(*args: Any, stream: int | None = None) -> Any:
            return _launch(lambda: runner(*args, stream=stream), args, stream)

        return run

    return getitem


def _kernel_of_graph(stock: _Method) -> _Method:
    """The same for a kernel of a compiled graph, unless the graph has pinned all that its kernels are given.

    The first time it tries variants of the kernel, on copies that must stay meanwhile.
    """

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if graph.all_pinned:
            return stock(self, *args, **kwargs)
        return _launch(
            lambda: pinned(lambda: stock(self, *args, **kwargs), (), True),
            (args, tuple(kwargs.values())),
            kwargs.get("stream"),
        )

    return run


def _raw_call(stock: _Method) -> _Method:
    """A function that runs kernels on its tensor arguments, and on what it allocates, outside of any operation."""

    def raw_call(*args: Any, **kwargs: Any) -> Any:
        return pinned(lambda: stock(*args, **kwargs), (args, tuple(kwargs.values())), False)

    return raw_call


def _between_devices(stock: _Method) -> _Method:
    """The same for what NCCL may do, which reaches from one device into the other's memory."""
    raw_call = _raw_call(stock)

    def between_devices(*args: Any, **kwargs: Any) -> Any:
        _library.check(_library.load("cuda").lms_torch_cuda_share_all())
        return raw_call(*args, **kwargs)

    return between_devices


def pinned(call: Callable[[], Any], inputs: Any, current_stream: bool) -> Any:
    """Makes a call with the tensors among its inputs pinned, what it allocates protected until the end, and what it
    returns free to be paged out from then on. A pin is no reference: the call may free an input early.
    """
    library, pagers = _library.load(), _library.pagers()
    tokens: list[int] = []
    scopes: list[None] = []
    try:
        tokens = pin(list(tensors_among(inputs)), current_stream)
        scopes.extend(map(library.lms_scope_begin, pagers))  # as one call: no signal's handler raises within
        outputs = call()
        # No operation has seen the outputs, and only what was seen may be paged out: a pin counts.
        unpin(pin(list(tensors_among((outputs,))), current_stream), current_stream)
        return outputs
    finally:
        list(map(library.lms_scope_end, pagers[: len(scopes)]))
        unpin(tokens, current_stream)


class _Graph(threading.local):
    all_pinned = False  # whether this thread runs a compiled graph whose constants are known


graph = _Graph()


# ------------------------------------------------------------------------------------------------ collectives

# Those that may still run, with the pins of their tensors. Only before 1.13, where they are no operators: from then on
# the observer sees them.
_collectives: list[tuple[Any, list[int]]] = []
_collectives_lock = threading.Lock()


def _release_done(waited_for: Any = None) -> None:
    """Drops the pins of the collectives that are done, or waited for by all that is enqueued from now on."""
    done = []
    with _collectives_lock:
        for entry in list(_collectives):
            if entry[0] is waited_for or entry[0].is_completed():
                _collectives.remove(entry)
                done.append(entry)
    for _, tokens in done:
        unpin(tokens, False)


def _collective(stock: _Method) -> _Method:
    """A method of a process group that starts work on its tensor arguments, which goes on when the method has returned."""

    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        _release_done()
        tokens = pin(list(tensors_among((args, tuple(kwargs.values())))), False)
        try:
            work = stock(self, *args, **kwargs)
        except BaseException:
            unpin(tokens, False)
            raise
        if tokens:
            with _collectives_lock:
                _collectives.append((work, tokens))
        return work

    return collective


def _wait(stock: _Method) -> _Method:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        _release_done(self)
        return result

    return wait


# ------------------------------------------------------------------------------------------------ other processes


# TensorPipe's ways to send a tensor, best first, but for "cma": there the receiving process reads the sender's memory,
# and learns nothing of a block that is away. With the others each process copies its own.
_CHANNELS = ("xth", "mpt_uv", "basic", "cuda_xth", "cuda_ipc", "cuda_gdr", "cuda_basic")


def _rpc_options(stock: _Method) -> _Method:
    def is_in_this_build(cls: type, channel: str) -> bool:
        try:
            stock(cls.__new__(cls), _channels=[channel])
        except (RuntimeError, TypeError):
            return False
        return True

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("_channels") is None:
            kwargs["_channels"] = [channel for channel in _CHANNELS if is_in_this_build(type(self), channel)] or None
        stock(self, *args, **kwargs)

    return init


def warn_of_rpc() -> None:
    """Says what does not work when RPC is there already, with the options of before."""
    api = sys.modules.get("torch.distributed.rpc.api")
    if getattr(api, "_is_current_rpc_agent_set", bool)():
        warnings.warn(
            "RPC was initialized before LMS was enabled: other processes cannot read a tensor that is paged out; call"
            " torch.lms.enable before torch.distributed.rpc.init_rpc",
            stacklevel=3,
        )


# ------------------------------------------------------------------------------------------------ storages


# Before 2.0 those of other devices than the CPU copy outside of operations, and there may be several classes.
def _storage_method(stock: _Method) -> _Method:
    def with_storages_resident(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as pins:
            for storage in (self, *args):
                if isinstance(storage, type(self)):
                    pins.enter_context(_library.resident(storage.data_ptr()))
            return stock(self, *args, **kwargs)

    return with_storages_resident


def _resize(stock: _Method) -> _Method:
    """What moves contents to memory of another size, outside of operations, unless one of both sizes is 0."""

    def resize(self: Any, *args: Any, **kwargs: Any) -> Any:
        moves = self.device.type == "cuda" and self.nbytes() > 0 and any(args)
        with _library.resident(self.data_ptr()) if moves else contextlib.nullcontext():
            return stock(self, *args, **kwargs)

    return resize


def _storage_classes() -> list[str]:
    """Those that are not made of another: one from 1.11 on; before, one for every type of data and device."""
    if hasattr(torch.Tensor, "untyped_storage"):
        return []
    return [
        f"{cls.__module__}:{cls.__name__}"
        for cls in sorted(torch._storage_classes, key=str)
        if any(base.__module__ == "torch._C" for base in cls.__mro__)
    ]


def _collective_rows() -> list[Row]:
    if torch._C._jit_get_schemas_for_operator("c10d::allreduce_"):
        return []
    module = "torch._C:_distributed_c10d." if hasattr(torch._C, "_distributed_c10d") else "torch.distributed:"
    return [
        Row(_ANY, f"{module}Work", "wait", _wait),
        *(
            Row(_ANY, f"{module}ProcessGroup", name, _collective)
            for name in (
                "_allgather_base",
                "_reduce_scatter_base",
                "allgather",
                "allgather_coalesced",
                "allreduce",
                "allreduce_coalesced",
                "alltoall",
                "alltoall_base",
                "broadcast",
                "gather",
                "recv",
                "recv_anysource",
                "reduce",
                "reduce_scatter",
                "scatter",
                "send",
            )
        ),
    ]


_ANY = ("cpu", "cuda")
_CPU = ("cpu",)
_CUDA = ("cuda",)

ROWS: tuple[Row, ...] = (
    Row(_CPU, "torch:Tensor", "numpy", _numpy),  # also what Tensor.__array__ calls
    Row(_ANY, "torch._C", "_to_dlpack", _to_dlpack),  # what Tensor.__dlpack__ calls, as is the next
    Row(_ANY, "torch._C", "_to_dlpack_versioned", _to_dlpack),
    Row(_ANY, "torch.utils.dlpack", "to_dlpack", _to_dlpack),
    Row(_ANY, "torch", "to_dlpack", _to_dlpack),  # before 2.9, what Tensor.__dlpack__ calls
    Row(_CUDA, "torch:Tensor", "__dlpack_c_exchange_api__", None),  # would export without calling any of these
    Row(_CUDA, "torch:Tensor", "__cuda_array_interface__", _cuda_array_interface),
    Row(_CUDA, "triton.runtime.jit:JITFunction", "run", _triton_function),
    Row(_CUDA, "triton.compiler.compiler:CompiledKernel", "__getitem__", _triton_binary),
    Row(_CUDA, "torch._inductor.runtime.triton_heuristics:CachingAutotuner", "run", _kernel_of_graph),
    Row(_CUDA, "torch._C:_aoti.AOTIModelContainerRunnerCuda", "run", _raw_call),  # code compiled ahead of time
    Row(_CUDA, "torch._C:_aoti.AOTIModelPackageLoader", "run", _raw_call),
    Row(_CUDA, "torch._C:_aoti.AOTIModelPackageLoader", "boxed_run", _raw_call),
    *(
        Row(_CUDA, "torch._C", name, _between_devices)  # torch.cuda.comm, which is DataParallel's, and torch.cuda.nccl
        for name in (
            "_broadcast",
            "_broadcast_coalesced",
            "_broadcast_out",
            "_gather",
            "_gather_out",
            "_scatter",
            "_scatter_out",
            "_nccl_all_gather",
            "_nccl_all_reduce",
            "_nccl_broadcast",
            "_nccl_reduce",
            "_nccl_reduce_scatter",
        )
    ),
    *(
        Row(_CUDA, storage, name, _storage_method)
        for storage in _storage_classes()
        for name in ("_write_file", "_set_from_file", "copy_", "fill_", "resize_", "__getitem__", "__setitem__")
    ),
    *(Row(_CUDA, "torch:UntypedStorage", name, _resize) for name in ("resize_", "_resize_with_addr_")),
    Row(_CPU, "torch.distributed.rpc:TensorPipeRpcBackendOptions", "__init__", _rpc_options),
    *_collective_rows(),
)
