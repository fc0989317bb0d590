"""Kernels that bypass dispatch: Triton's, launched from Python and by compiled graphs. They are compiled for real, and
functions of kernels.cc stand in for them on the simulated device, where an access to a block that is away loses it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from cuda_support import MIB, away, data, enable, equal, lost, page_out, simulator, stand_in, stat

COUNT = MIB  # of the floats of a tensor


def affine_kernel() -> Any:
    """out = 2 * in + 1, for Triton."""
    global tl  # Triton looks names up there
    import triton
    import triton.language as tl

    @triton.jit
    def affine(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < count
        tl.store(target + offsets, 2 * tl.load(source + offsets, mask=mask) + 1, mask=mask)

    stand_in("affine", "affine")
    return affine


def launch(kernel: Any, source: Any, target: torch.Tensor) -> None:
    kernel[(COUNT // 1024,)](source, target, COUNT, BLOCK=1024)


def check_launch_pins_its_arguments() -> None:
    expected = data(4)
    enable()
    kernel = affine_kernel()
    for _ in range(2):
        source, target = away(expected), away(torch.zeros(COUNT))
        launch(kernel, source, target)
        assert stat("pinned_bytes.current") == 0
        page_out()
        equal(target, 2 * expected + 1)
        equal(source, expected)


def check_launch_works_when_triton_was_imported_before() -> None:
    kernel = affine_kernel()
    enable()
    source, target = away(data(4)), away(torch.zeros(COUNT))
    launch(kernel, source, target)
    equal(target, 2 * data(4) + 1)
    torch.lms.disable("cuda")
    assert "_handout" not in type(kernel).run.__code__.co_filename
    launch(kernel, target, source)
    equal(source, 4 * data(4) + 3)


def check_launch_works_when_triton_is_imported_later() -> None:
    enable()
    assert "triton" not in sys.modules
    check_launch_pins_its_arguments()
    torch.lms.disable("cuda")
    assert not any("lms" in type(finder).__module__ for finder in sys.meta_path)


def check_launch_under_pressure() -> None:
    values = [data(4, seed) for seed in range(8)]
    kernel = affine_kernel()
    enable(16 * MIB)
    tensors = [value.cuda() for value in values]
    for index in range(8):
        launch(kernel, tensors[index], tensors[(index + 5) % 8])
        values[(index + 5) % 8] = 2 * values[index] + 1
    for tensor, value in zip(tensors, values, strict=True):
        equal(tensor, value)
    assert stat("over_limit_bytes.peak") == 0 and stat("in.blocks") > 8


def check_launch_on_another_stream() -> None:
    kernel = affine_kernel()
    enable(16 * MIB)
    stream = torch.cuda.Stream()
    source, target = away(data(4)), away(torch.zeros(COUNT))
    with torch.cuda.stream(stream):
        for _ in range(20):
            launch(kernel, source, target)
    assert torch.lms.reclaim("cuda") == 8 * MIB  # waits for the stream
    equal(target, 2 * data(4) + 1)


def check_launch_of_a_compiled_kernel() -> None:
    import triton

    kernel = affine_kernel()
    enable(16 * MIB)
    stream = torch.cuda.Stream()
    source, target = data(4).cuda(), torch.zeros(COUNT).cuda()
    binary = kernel.warmup(source, target, COUNT, BLOCK=1024, grid=(1,))
    page_out()
    arguments = [source, target, COUNT]
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 3):
        arguments.append(1024)
    binary[(COUNT // 1024, 1, 1)](*arguments, stream=stream.cuda_stream)
    assert torch.lms.reclaim("cuda") == 8 * MIB
    equal(target, 2 * data(4) + 1)
    binary[(COUNT // 1024, 1, 1)](*[target, source, *arguments[2:]])
    equal(source, 4 * data(4) + 3)


def check_launch_with_a_wrapped_argument() -> None:
    import triton

    kernel = affine_kernel()
    enable()
    source, target = away(data(4)), away(torch.zeros(COUNT))
    launch(kernel, triton.reinterpret(source, triton.language.float32), target)
    equal(target, 2 * data(4) + 1)


def check_launch_that_was_not_announced_is_an_error() -> None:
    # The stand-in tells right from wrong: without the wrapper the kernel loses the device.
    kernel = affine_kernel()
    plain = type(kernel).run
    launch(kernel, data(4).cuda(), torch.zeros(COUNT).cuda())
    enable()
    type(kernel).run = plain
    source, target = away(data(4)), away(torch.zeros(COUNT))
    try:
        launch(kernel, source, target)
    except ValueError as error:  # Triton asks the driver whether there is memory at the address
        assert "cannot be accessed" in str(error)
        equal(source, data(4))
    else:
        assert lost()


# ------------------------------------------------------------------------------------------------ torch.compile


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    torch._inductor.config.triton.autotune_pointwise = False
    return torch.compile(function)


def check_compiled_graph_pins_its_inputs() -> None:
    stand_in("affine", "triton_poi_fused_add_mul_0")
    function = compiled(lambda x: x * 2 + 1)
    expected = 2 * data(4) + 1
    equal(function(data(4).cuda()), expected)
    enable()
    outputs = []
    for _ in range(3):
        outputs.append(function(away(data(4))))
        assert stat("pinned_bytes.current") == stat("protected_bytes.current") == 0
        page_out()
    for output in outputs:
        equal(output, expected)


def check_what_a_graph_saves_may_leave() -> None:
    stand_in("product", "triton_poi_fused_mul_0")
    enable()
    left, right = data(4, 1), data(4, 2)
    a, b = left.cuda().requires_grad_(), right.cuda()
    result = compiled(lambda x, y: x * y)(a, b)
    page_out()
    assert stat("resident_bytes.current") == 0
    equal(result.detach(), left * right)
    page_out()
    (gradient,) = torch.autograd.grad(result, a, away(data(4, 3)))
    page_out()
    equal(gradient, data(4, 3) * right)


def check_what_a_graph_froze_is_pinned() -> None:
    stand_in("product", "triton_poi_fused_mul_0")
    torch._inductor.config.freezing = True

    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(data(4, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    enable()
    with torch.no_grad():
        module = Scale().cuda()
        function = compiled(module)
        for seed in range(3):
            equal(function(away(data(4, seed))), data(4, seed) * data(4, 2))
            page_out()
            assert stat("pinned_bytes.current") == 0


def check_compiled_graphs_under_pressure() -> None:
    stand_in("affine", "triton_poi_fused_add_mul_0")
    function = compiled(lambda x: x * 2 + 1)
    values = [data(4, seed) for seed in range(8)]
    enable(16 * MIB)
    tensors = [value.cuda() for value in values]
    for _ in range(2):
        tensors = [function(tensor) for tensor in tensors]
        values = [2 * value + 1 for value in values]
    for tensor, value in zip(tensors, values, strict=True):
        equal(tensor, value)
    assert stat("over_limit_bytes.peak") == 0 and stat("out.blocks") > 8
    assert simulator().sim_device_error(0) == 0
