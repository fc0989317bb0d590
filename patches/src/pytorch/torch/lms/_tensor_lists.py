"""Functions that do the same with every tensor of a list: those of foreach and fused optimizers, and what they call.

An operation keeps all that it is given resident, which here may be every parameter and every state of a model. So a
list that takes more than its share of the limit is handed on in groups, each of as many tensors as fit, at least one.
Tensors of such a list do not depend on each other, which is why the results are the same to the bit. Where they would
depend on each other the list stays whole.

An optimizer's function makes temporaries as large as a list, so a group's share is half the limit at most: the
temporaries of one group are gone before the next begins. A GPU copies while it computes, so there a share is smaller:
while one group is computed with, the next one comes and the one before leaves.
"""

from __future__ import annotations

import itertools
import mmap
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import _library
from ._compilers import compiled_as_stock
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    _Function = Callable[..., Any]
    _Lists = dict[Any, Sequence[Any]]  # by the position or the name of the argument


_PARTS = {"cpu": 2, "cuda": 16}  # of the limit; a group may take one of them
_PAGES = {"cpu": mmap.PAGESIZE, "cuda": 2 << 20}  # bytes; a managed tensor takes whole ones


class _Calls(threading.local):
    inside = False  # whether this thread is in such a function: what it calls gets no more than it was given


_calls = _Calls()


# How many dispatch modes are at work, such as those of compilers; none must see calls that the program did not make.
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)


class _Share(NamedTuple):
    """What a group may take of a device, and from which size on a tensor takes whole pages. In bytes."""

    most: int
    min_size: int
    page: int

    def taken(self, nbytes: int) -> int:
        """By a storage of so many bytes."""
        return nbytes if nbytes < self.min_size else -(-nbytes // self.page) * self.page


def _shares() -> dict[torch.device, _Share]:
    """Of each device with a limit."""
    library, found = _library.load(), {}
    for device in filter(_library.enabled, _library.devices()):
        key = torch.device(str(device))
        most = library.lms_limit(_library.pager(device)) // _PARTS[key.type]
        found[key] = _Share(most, _library.call(device, "min_size"), _PAGES[key.type])
    return found


def _fit(storages: Iterable[tuple[torch.device, int]], shares: dict[torch.device, _Share]) -> bool:
    """Whether storages, each by its device and its bytes, are together no more than a group may take."""
    needed = dict.fromkeys(shares, 0)
    for device, nbytes in storages:
        if device in shares:
            needed[device] += shares[device].taken(nbytes)
    return all(needed[device] <= share.most for device, share in shares.items())


def _local(tensor: Any) -> torch.Tensor:
    """What this process has of a tensor that several of them hold together."""
    return getattr(tensor, "_local_tensor", tensor)


def _tensors(lists: _Lists, index: int) -> Iterator[torch.Tensor]:
    return (_local(each[index]) for each in lists.values() if isinstance(each[index], torch.Tensor))


class _Part:
    """What a tensor occupies: a storage, and the bytes in it from the first to the last that the tensor has."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        self.storage: int = storage._cdata
        self.storage_bytes: int = storage.nbytes()
        self.device = tensor.device
        size = tensor.element_size()
        last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride()))  # noqa: B905
        self.begin = tensor.storage_offset() * size
        self.end = self.begin + (last + 1) * size if tensor.numel() else self.begin


def _depend(parts: list[list[_Part]]) -> bool:
    """Whether memory belongs to tensors at different places of the lists, so that their order matters."""
    sharers: dict[int, list[tuple[int, int, int]]] = {}
    for index, each in enumerate(parts):
        for part in each:
            sharers.setdefault(part.storage, []).append((part.begin, part.end, index))
    for ranges in sharers.values():
        ranges.sort()
        reached, last = 0, -1
        for begin, end, index in ranges:
            if begin < reached and index != last:
                return True
            if end > reached:
                reached, last = end, index
    return False


def _ends(parts: list[list[_Part]], shares: dict[torch.device, _Share]) -> list[int]:
    """Where each group ends."""
    ends = []
    taken: dict[int, _Part] = {}  # the group's storages
    for index, each in enumerate(parts):
        with_next = {**taken, **{part.storage: part for part in each}}
        if taken and not _fit(((part.device, part.storage_bytes) for part in with_next.values()), shares):
            ends.append(index)
            with_next = {part.storage: part for part in each}
        taken = with_next
    return [*ends, len(parts)]


def _one_kernel(lists: _Lists, count: int) -> bool:
    """Whether the tensors go through the same kernel in a group as in the whole list.

    On CUDA one tensor that differs from its fellows in its strides makes the whole list take another.
    """
    for index in range(count):
        tensors = [tensor for tensor in _tensors(lists, index) if tensor.numel() > 1]
        if any(tensor.is_cuda and tensor.stride() != tensors[0].stride() for tensor in tensors):
            return False
    return True


def _groups(lists: _Lists, count: int) -> list[int]:
    """Where each group ends of lists that have `count` elements."""
    shares = _shares()
    tensors = [each for value in lists.values() for each in value if isinstance(each, torch.Tensor)]
    if _fit(((tensor.device, tensor.numel() * tensor.element_size()) for tensor in tensors), shares):
        return [count]
    if not all(tensor.layout == torch.strided for tensor in tensors) or not _one_kernel(lists, count):
        return [count]  # sparse gradients make an optimizer treat all tensors in another way
    try:
        parts = [[_Part(tensor) for tensor in _tensors(lists, index)] for index in range(count)]
    except (RuntimeError, NotImplementedError):
        return [count]  # no memory of their own: those of functorch
    return [count] if _depend(parts) else _ends(parts, shares)


def _same_for_all(lists: _Lists, kwargs: dict[str, Any]) -> bool:
    """Whether no tensor's type decides something for others: Adafactor takes a default from the first that it meets."""
    return kwargs.get("eps1", 0) is not None or len({tensor.dtype for tensor in next(iter(lists.values()))}) == 1


def _lists(values: dict[Any, Any]) -> tuple[_Lists, int]:
    """The arguments that have an element for each tensor, and how many that is. Lists that are optional may be empty."""
    count = next((len(value) for value in values.values() if isinstance(value, (list, tuple))), 0)
    return {
        key: value
        for key, value in values.items()
        if (isinstance(value, (list, tuple)) or (isinstance(value, torch.Tensor) and value.dim() == 1))
        and len(value) == count
    }, count


@compiled_as_stock
def _in_groups(stock: _Function) -> _Function:
    """The function, on groups of its lists. It may put tensors into lists that it is given, and return a list."""

    def in_groups(*args: Any, **kwargs: Any) -> Any:
        if _calls.inside or _dispatch_modes() > 0:
            return stock(*args, **kwargs)
        values = {**dict(enumerate(args)), **kwargs}
        lists, count = _lists(values)
        _calls.inside = True
        try:
            ends = _groups(lists, count) if count > 1 and _same_for_all(lists, kwargs) else [count]
            if len(ends) == 1:
                return stock(*args, **kwargs)
            results = []
            for begin, end in zip([0, *ends], ends):  # noqa: B905  what releases with Python 3.7 run, too
                parts = {key: value[begin:end] for key, value in lists.items()}
                group = {**values, **parts}
                results.append(stock(*[group.pop(index) for index in range(len(args))], **group))
                for key, part in parts.items():
                    if isinstance(lists[key], list):
                        lists[key][begin:end] = part
            return None if results[0] is None else type(results[0])(itertools.chain(*results))
        finally:
            _calls.inside = False

    return in_groups


_ANY = ("cpu", "cuda")
_CUDA = ("cuda",)


def _names(owner: Any, *beginnings: str) -> list[str]:
    return [name for name in dir(owner) if name.startswith(beginnings) and callable(getattr(owner, name))]


ROWS: tuple[Row, ...] = (
    *(
        Row(_ANY, module, name, _in_groups)
        for module in sorted(sys.modules)
        if module.startswith("torch.optim.")
        for name in _names(sys.modules[module], "_multi_tensor_", "_fused_")
    ),
    *(
        Row(_ANY, "torch", name, _in_groups)
        for name in _names(torch, "_amp_foreach_", "_fused_sgd", "_fused_ada")
        if name.endswith("_")
    ),
    # On the CPU these call an operator for each tensor, and the observer knows that (LmsOperationTraits.h).
    *(Row(_CUDA, "torch", name, _in_groups) for name in _names(torch, "_foreach_")),
)
