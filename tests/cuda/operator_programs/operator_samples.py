"""operator_samples.py MODE FIRST STEP: upstream's sample inputs of its operators (OpInfo), on the CPU and on the simulated GPU.

Tries the operators number FIRST, FIRST + STEP and so on. Prints two lines for each: "begin NUMBER", and, as JSON, its name, how
many samples were equal to the bit, results and gradients, and what was wrong; and then "end", with how many operators there are.
With the mode "lms" everything is paged out before each operator, and before its backward pass; "stock" is without LMS. Ends with 3
when the device is lost. LMS_TEST_SAMPLES sets how many samples are taken of each.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)
SAMPLES = int(os.environ.get("LMS_TEST_SAMPLES", "4"))  # of an operator, for each type
BACKWARDS = max(1, SAMPLES // 3)  # of them, again with what is given laid out backwards
LOST = 3
# What has no content to compare, and what the wheel itself does otherwise on CUDA.
DIFFERENT = {
    "empty": "has no content",
    "empty_like": "has no content",
    "empty_permuted": "has no content",
    "empty_strided": "has no content",
    "new_empty": "has no content",
    "new_empty_strided": "has no content",
    "linalg.lstsq": "its driver gelsy is the CPU's, and not repeatable",
    "linalg.lstsq.grad_oriented": "its driver gelsy is the CPU's, and not repeatable",
    "linalg.svdvals": "the layout of a factor differs",
    "svd_lowrank": "the layout of a factor differs",
    "pca_lowrank": "the layout of a factor differs",
    "native_batch_norm": "returns two empty tensors on the CPU",
    "_native_batch_norm_legit": "returns two empty tensors on the CPU",
    "renorm": "adds up in double precision on CUDA",
    "tensor_split": "wants its second argument on the CPU",
    "to": "its samples name a device",
}
# What the wheel itself does otherwise on CUDA where an argument is not contiguous.
NOT_BACKWARDS = {
    "max.reduction_no_dim": "its gradient is made of other operators",
    "min.reduction_no_dim": "its gradient is made of other operators",
}
REFUSED = {
    "histogram": "is the CPU's alone",
    "histogramdd": "is the CPU's alone",
    "sparse.mm.reduce": "is the CPU's alone",
    "sparse.sampled_addmm": "takes sparse tensors",
    "to_sparse": "makes sparse tensors",
}


def laid_backwards(value: Tensor) -> Tensor:
    """The same elements, the first dimension's next to one another."""
    return value if value.dim() < 2 else value.transpose(0, -1).contiguous().transpose(0, -1)


def moved(arguments: Any, device: str, backwards: bool) -> Any:
    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        plain = laid_backwards(value.detach()) if backwards else value.detach()
        return plain.to(device, copy=True).requires_grad_(value.requires_grad)

    return tree_map(move, arguments)


def tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def run(
    operator: Any, sample: Any, device: str, page_out: Callable[[], object], backwards: bool
) -> list[tuple[Tensor, list[int]]]:
    """Its results, and the gradients of its arguments: on the CPU, and the strides of dimensions that have any."""
    torch.manual_seed(0)
    arguments = moved((sample.input, sample.args, sample.kwargs), device, backwards)
    if "device" in arguments[2]:
        arguments[2]["device"] = device
    page_out()
    outputs = tensors(operator(arguments[0], *arguments[1], **arguments[2]))
    leaves = [tensor for tensor in tensors(arguments) if tensor.requires_grad]
    differentiable = [output for output in outputs if output.requires_grad]
    gradients: list[Tensor] = []
    if leaves and differentiable:
        torch.manual_seed(1)
        seeds = [torch.randn(output.shape, dtype=output.dtype).to(device) for output in differentiable]
        page_out()
        found = torch.autograd.grad(differentiable, leaves, seeds, allow_unused=True)
        gradients = [gradient for gradient in found if gradient is not None]
    page_out()
    return [
        (
            tensor.detach().cpu(),
            [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1],
        )
        for tensor in (*outputs, *gradients)
    ]


def numbers(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj().resolve_neg()) if tensor.is_complex() else tensor.resolve_neg()


def equal(results: tuple[tuple[Tensor, list[int]], tuple[Tensor, list[int]]]) -> bool:
    (one, strides), (other, other_strides) = results
    if one.numel() > 0 and strides != other_strides:
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.is_floating_point or one.dtype.is_complex:
        one, other = (numbers(tensor).nan_to_num() for tensor in (one, other))
    return torch.equal(one, other)


def compare(operator: Any, page_out: Callable[[], object]) -> int:
    """How many samples are equal. Raises AssertionError where one is not."""
    served = operator.supported_dtypes("cpu")
    types = [dtype for dtype in TYPES if dtype in served] or [min(served, key=str)]
    return sum(compare_in(dtype, operator, page_out) for dtype in types)


def compare_in(dtype: torch.dtype, operator: Any, page_out: Callable[[], object]) -> int:
    count = 0
    torch.manual_seed(5)
    differentiable = operator.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    samples = list(operator.sample_inputs("cpu", dtype, requires_grad=differentiable))[:SAMPLES]
    again = [] if operator.full_name in NOT_BACKWARDS else samples[:BACKWARDS]
    for sample, backwards in [*((sample, False) for sample in samples), *((sample, True) for sample in again)]:
        try:
            expected = run(operator, sample, "cpu", lambda: None, backwards)
        except RuntimeError:
            continue  # not on the CPU
        actual = run(operator, sample, "cuda", page_out, backwards)
        assert len(actual) == len(expected)
        pairs = list(zip(actual, expected, strict=True))
        wrong = [index for index, pair in enumerate(pairs) if not equal(pair)]
        strides = [(here[1], there[1]) for here, there in pairs]
        assert not wrong, f"{wrong} differ; laid out backwards: {backwards}; strides {strides}; {sample}"
        count += 1
    return count


def attempt(number: int, page_out: Callable[[], object]) -> None:
    operator = op_db[number]
    print(f"begin {number}", flush=True)
    outcome = {"name": operator.full_name, "equal": 0, "wrong": ""}
    lost = False
    if operator.supported_dtypes("cpu") and operator.full_name not in DIFFERENT:
        try:
            outcome["equal"] = compare(operator, page_out)
        except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
            lost = "CUDA error" in str(error)
            is_refusal = isinstance(error, NotImplementedError) and operator.full_name in REFUSED
            outcome["wrong"] = "" if is_refusal else traceback.format_exc()[-2000:]
    print(json.dumps(outcome), flush=True)
    if lost:
        os._exit(LOST)


def main() -> None:
    mode, first, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    page_out: Callable[[], object] = lambda: None
    if mode == "lms":
        torch.lms.enable("cuda", limit="512MiB", min_size=1)
        page_out = lambda: torch.lms.reclaim("cuda")
    for number in range(first, len(op_db), step):
        attempt(number, page_out)
    print(f"end {len(op_db)}")
    if mode == "lms":
        assert torch.lms.stats("cuda")["in.blocks"] > 0


if __name__ == "__main__":
    main()
