"""torch.compile: what inductor generates bypasses the dispatcher, so each kernel of a compiled graph pins its tensors.

Every function is compiled once, run with the stock allocator, and run again under LMS: the same code, the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import numpy
import torch
from common import MIB
from support import away, data, enable, no_faults, page_out, pressure, same, stat
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 512)
        self.norm = nn.LayerNorm(512)
        self.down = nn.Linear(512, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.norm(self.up(x))))


def check_forward_and_backward() -> None:
    # A graph a block, as models are compiled by regions: one graph's working set is small against the peak.
    blocks = [Block() for _ in range(8)]
    compiled = [torch.compile(block) for block in blocks]
    parameters = [parameter for block in blocks for parameter in block.parameters()]
    start = [(data(0.5, seed)[: p.numel()] / 20000).view_as(p) for seed, p in enumerate(parameters)]
    batch = data(1, 99).view(1024, 256) / 1000

    def train() -> list[torch.Tensor]:
        for parameter, value in zip(parameters, start, strict=True):
            parameter.data = value.clone()
        losses = []
        for _ in range(3):
            x = batch
            for block in compiled:
                x = block(x)
            loss = x.pow(2).mean()
            loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= 0.01 * parameter.grad  # type: ignore[operator]
            losses.append(loss.detach())
        result = losses + [p.detach() for p in parameters] + [p.grad for p in parameters]  # type: ignore[misc]
        for parameter in parameters:
            parameter.grad = None
        return result

    expected = train()
    enable(1 << 40)
    batch = batch.clone()
    same(train(), expected)
    peak = stat("allocated_bytes.peak")
    for policy in ("lru", "iteration"):
        enable(peak // 3, policy=policy)
        torch.lms.reset_peak_stats("cpu")
        moved = stat("out.bytes")
        with no_faults():
            same(train(), expected)
        # What the forward graphs saved for the backward ones left between the two.
        assert stat("out.bytes") > moved + peak // 3 and stat("over_limit_bytes.peak") == 0, torch.lms.stats("cpu")


def generated_kernels() -> list[Callable[..., None]]:
    modules = torch._inductor.codecache.PyCodeCache.modules
    return [each for module in modules for name, each in vars(module).items() if name.startswith("cpp_fused")]


def check_one_graph_keeps_a_limit() -> None:
    # The whole model is one graph, whose kernels need far less at once than all that it is given and saves.
    model = nn.Sequential(*(Block() for _ in range(6)))
    start = [parameter.detach().clone() for parameter in model.parameters()]
    compiled = torch.compile(model, fullgraph=True)
    batch = data(0.5, 99).view(512, 256) / 1000

    def train() -> list[torch.Tensor]:
        for parameter, value in zip(model.parameters(), start, strict=True):
            parameter.data = value.clone()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        losses = []
        for _ in range(3):
            loss = compiled(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *(parameter.detach() for parameter in model.parameters())]

    expected = train()
    enable(1 << 40)
    torch.lms.reset_peak_stats("cpu")
    same(train(), expected)
    peak = stat("resident_bytes.peak")
    for parts in (2, 4):
        enable(peak // parts)
        torch.lms.reset_peak_stats("cpu")
        moved = stat("out.bytes")
        with no_faults():
            same(train(), expected)
        assert stat("resident_bytes.peak") <= peak // parts + 4096 and stat("out.bytes") > moved + peak // 4, parts
    assert len(generated_kernels()) > 2 and all(isinstance(each, FunctionType) for each in generated_kernels())
    torch.lms.disable("cpu")
    assert not any(isinstance(each, FunctionType) for each in generated_kernels())
    same(train(), expected)


def check_a_graph_in_cpp_is_pinned_for_the_call() -> None:
    @torch.compile(options={"cpp_wrapper": True})
    def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.sin(a) @ b / 1000 + a) * 2

    inputs = [data(1, i).view(512, 512) for i in range(2)]
    expected = chain(*inputs)
    enable(12 * MIB)
    inputs = [away(tensor) for tensor in inputs]
    with no_faults():
        same(chain(*inputs), expected)


def check_inputs_are_pinned_for_the_call() -> None:
    @torch.compile
    def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            a = torch.sin(a) @ b / 1000 + a  # a fallback to a library, between generated kernels
        return a * 2

    inputs = [data(1, i).view(512, 512) for i in range(2)]
    expected = chain(*inputs)
    enable(12 * MIB)
    inputs = [away(tensor) for tensor in inputs]
    with no_faults():
        results = []
        for _ in range(3):
            page_out()
            results.append(chain(*inputs))
            pressure()
    assert stat("pinned_bytes.current") == 0
    same(results, [expected] * 3)
    del results, inputs
    assert stat("allocated_bytes.current") == 0  # a pin is no reference


def check_mutation_and_views_and_numpy() -> None:
    @torch.compile
    def update(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x)
        return state[1:].sum(0)

    @torch.compile
    def through_numpy(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(numpy.sin(x.numpy())) + 1

    state, x = data(1, 1).view(512, 512), data(1, 2).view(512, 512)
    start = state.clone()
    expected = [update(state, x) for _ in range(3)] + [state.clone(), through_numpy(x)]
    enable(4 * MIB)
    state, x = away(start), away(x)
    actual = []
    for _ in range(3):
        page_out()
        actual.append(update(state, x))
    page_out()
    actual += [state.clone(), through_numpy(x)]
    same(actual, expected)


def check_pin_inside_a_compiled_function() -> None:
    def pinned(x: torch.Tensor) -> torch.Tensor:
        with torch.lms.pin(x):
            return torch.sin(x) + 1

    x = data(1)
    expected = torch.compile(pinned)(x)
    enable()
    same(torch.compile(pinned)(away(x)), expected)
    assert stat("pinned_bytes.current") == 0


def check_compiled_before_and_after_switching() -> None:
    @torch.compile
    def early(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 3

    @torch.compile
    def late(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(numpy.abs(x.numpy())) + x.sum()

    x = data(1)
    expected = early(x)
    for _ in range(2):
        enable()
        same(early(away(x)), expected)
        actual = late(away(x))  # compiled, the first time, while LMS is enabled
        page_out()
        torch.lms.disable("cpu")
        same(early(x), expected)
        same(late(x), actual)
