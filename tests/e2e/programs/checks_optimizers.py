"""Optimizers of lists: foreach and fused ones keep a limit far below what all parameters and states take."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from common import MIB
from support import data, enable, same, stat
from torch import nn

LIMIT = 10 * MIB // 4  # one parameter of 8 bytes an element, its gradient and three states
COUNT = 12
# Those that take lists; Muon wants matrices, and what it does with one takes several times its size.
OPTIMIZERS = {
    name: each
    for name, each in vars(torch.optim).items()
    if isinstance(each, type) and {"foreach", "fused"} & set(inspect.signature(each.__init__).parameters)
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}, {"lr": torch.tensor(0.01)}],
    "AdamW": [{}, {"amsgrad": True}],
    "SGD": [{"lr": 0.1}, {"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9}],
    "NAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}],
}


START = [data(0.25, index).view(-1, 256) / 1024 for index in range(COUNT)]  # before LMS is enabled


def parameters(other: torch.dtype) -> list[torch.Tensor]:
    """A quarter of a MiB each, much smaller ones between them, some of another type; one without a gradient."""
    made = []
    for index in range(COUNT):
        value = START[index].to(other if index % 5 == 4 else torch.float32, copy=True)
        made += [nn.Parameter(value), nn.Parameter(value[0, : index + 1].clone())]
    made[6].requires_grad_(False)
    return made


def train(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], late: bool) -> list[Any]:
    """Three steps; with ``late``, a few parameters get their first gradients in the second."""
    # Stock's fused SGD reads memory that it has not written where the parameters are bfloat16.
    tensors = parameters(torch.bfloat16 if late else torch.float64)
    optimizer = make(tensors)
    for step in range(3):
        for index, tensor in enumerate(tensors):
            if tensor.requires_grad and not (late and step == 0 and index % 11 == 10):
                gradient = START[-1 - step].view(-1)[: tensor.numel()].view_as(tensor)
                tensor.grad = gradient.to(tensor.dtype, copy=True)
        optimizer.step()
    # In the order of the parameters, as it was filled.
    states = [state[key] for state in optimizer.state.values() for key in sorted(state)]
    return [[tensor.detach() for tensor in tensors], states]


def keeps(limit: int, use: Callable[[], Any]) -> None:
    """The same results under that limit, which is kept."""
    torch.lms.disable("cpu")
    expected = use()
    enable(limit)
    torch.lms.reset_peak_stats("cpu")
    actual = use()
    peak = stat("resident_bytes.peak")
    assert peak <= limit, (peak / limit, torch.lms.stats("cpu"))
    assert stat("allocated_bytes.peak") > 2 * limit  # it was short
    same(actual, expected)


def each_optimizer(implementation: str) -> Iterator[Callable[[list[torch.Tensor]], torch.optim.Optimizer]]:
    for name, kind in OPTIMIZERS.items():
        if implementation not in inspect.signature(kind.__init__).parameters:
            continue
        for options in OPTIONS.get(name, [{}]):
            if implementation == "foreach" and isinstance(options.get("lr"), torch.Tensor):
                continue  # wants capturable, which wants another device

            def make(tensors: list[torch.Tensor], kind: Any = kind, options: Any = options) -> torch.optim.Optimizer:
                return kind(tensors, **{implementation: True}, **options)

            yield make


def check_foreach_optimizers_keep_the_limit() -> None:
    for make in each_optimizer("foreach"):
        keeps(LIMIT, lambda make=make: train(make, late=True))


def check_fused_optimizers_keep_the_limit() -> None:
    for make in each_optimizer("fused"):
        keeps(LIMIT, lambda make=make: train(make, late=False))


@contextmanager
def cuda_rows() -> Iterator[None]:
    """Replaces for CPU tensors, too, what is replaced for CUDA tensors, where no observer knows of list functions."""
    from torch.lms import _tensor_lists, _wrapping

    applied = set(_wrapping._wanted)
    _wrapping.apply(applied.union(_tensor_lists.ROWS))
    try:
        yield
    finally:
        _wrapping.apply(applied)


def lists() -> list[list[torch.Tensor]]:
    return [[START[(index + first) % COUNT].clone() for index in range(COUNT)] for first in range(4)]


def use_lists() -> list[Any]:
    a, b, c, weights = lists()
    scalars = [1 + index / 7 for index in range(COUNT)]
    torch._foreach_mul_(a, b)
    torch._foreach_add_(a, c, alpha=0.5)
    torch._foreach_addcmul_(a, b, c, scalars)
    torch._foreach_addcdiv_(a, b, torch._foreach_add(torch._foreach_abs(c), 1.0), torch.tensor(scalars))
    torch._foreach_lerp_(a, tensors1=b, weight=0.25)
    torch._foreach_lerp_(a, b, torch._foreach_sigmoid(weights))
    torch._foreach_mul_(a, torch.tensor(0.5))
    torch._foreach_maximum_(b, 0.0)
    torch._foreach_copy_(c, b)
    powers = torch._foreach_pow(2.0, torch._foreach_tanh(c))
    return [a, b, c, torch._foreach_norm(a), torch._foreach_norm(a, ord=1), torch._foreach_max(b), list(powers)]


def check_list_functions_keep_the_limit() -> None:
    keeps(LIMIT, use_lists)


def check_list_functions_in_groups() -> None:
    expected = use_lists()
    enable(LIMIT)
    with cuda_rows():
        assert hasattr(torch._foreach_add, "__wrapped__")
        same(use_lists(), expected)


def check_lists_whose_tensors_depend_on_each_other() -> None:
    def use() -> list[torch.Tensor]:
        whole = data(2, 1)
        a = [whole, *whole.chunk(4), whole]  # each is written, and read as another
        torch._foreach_add_(a, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        torch._foreach_mul_(a, a[::-1])
        other = data(2, 2)
        columns = list(other.view(64, -1).unbind(1))[:512]  # of one storage, but apart
        torch._foreach_mul_(columns, 3.0)
        return [whole, other]

    expected = use()
    enable(MIB)
    with cuda_rows():
        same(use(), expected)


def check_gradients_through_lists() -> None:
    def use() -> list[Any]:
        a, b, *_ = lists()
        for tensor in a:
            tensor.requires_grad_()
        results = torch._foreach_mul(torch._foreach_exp(torch._foreach_div(a, 1000)), b)
        sum(result.sum() for result in results).backward()
        return [[tensor.grad for tensor in a], torch._foreach_norm([tensor.grad for tensor in a])]

    expected = use()
    enable(LIMIT)
    same(use(), expected)
    with cuda_rows():
        same(use(), expected)


def clipped() -> list[Any]:
    tensors = parameters(torch.float64)
    for index, tensor in enumerate(tensors):
        tensor.grad = START[index % COUNT].view(-1)[: tensor.numel()].view_as(tensor).to(tensor.dtype, copy=True)
    norm = torch.nn.utils.clip_grad_norm_(tensors, 0.1, foreach=True)
    torch.nn.utils.clip_grad_value_(tensors, 1e-4, foreach=True)
    return [norm, [tensor.grad for tensor in tensors]]


def averaged() -> list[Any]:
    model = nn.ParameterList(START)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(2):
        average.update_parameters(nn.ParameterList([value + 1 for value in START]))
    return list(average.parameters())


def scaled() -> list[Any]:
    tensors = parameters(torch.float64)
    optimizer = torch.optim.AdamW(tensors, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for step in range(3):
        loss = sum(tensor.float().square().mean() for tensor in tensors if tensor.requires_grad)
        scaler.scale(loss if step != 1 else loss * float("inf")).backward()
        if step == 0:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [losses, [tensor.detach() for tensor in tensors], scaler.get_scale()]


def check_programs_that_use_lists() -> None:
    for use in (clipped, averaged, scaled):
        keeps(LIMIT, use)
        under_observer = use()
        with cuda_rows():
            same(use(), under_observer)


def compiled_and_scripted() -> list[Any]:
    sgd = importlib.import_module("torch.optim.sgd")
    tensors, gradients = ([START[index].clone() for index in range(4)] for _ in range(2))
    states = [torch.zeros_like(tensor) for tensor in tensors]

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step() -> None:
        sgd._multi_tensor_sgd(
            tensors, gradients, states, None, None, weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0.0,
            nesterov=False, maximize=False, has_sparse_grad=False,
        )  # fmt: skip
        torch._foreach_mul_(tensors, 0.5)

    def add(values: list[torch.Tensor]) -> list[torch.Tensor]:
        return torch._foreach_add(values, 1.0)

    step()
    return [tensors, states, torch.jit.script(add)(START)]


def check_compilers_know_what_is_replaced() -> None:
    expected = compiled_and_scripted()
    enable(MIB)
    with cuda_rows():
        same(compiled_and_scripted(), expected)
    torch.lms.disable("cpu")
    same(compiled_and_scripted(), expected)


def check_compilers_that_are_loaded_later() -> None:
    assert "torch._dynamo.trace_rules" not in sys.modules
    enable(MIB)
    with cuda_rows():
        expected = compiled_and_scripted()
    torch.lms.disable("cpu")
    same(compiled_and_scripted(), expected)
