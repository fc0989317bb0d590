"""Kernels of extensions that are bound by pybind11 and no operator: they get tensors that nothing announced."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils.cpp_extension
from cuda_support import MIB, away, data, enable, equal, lost, simulator, stat

SOURCE = Path(__file__).with_name("extension.cc")


@functools.cache
def built() -> Path:
    """The library, which the first check builds and the others load."""
    folder = Path(os.environ["TMPDIR"]) / "extension"
    folder.mkdir(exist_ok=True)
    torch.utils.cpp_extension.load(
        "lms_test_extension",
        [str(SOURCE)],
        extra_cflags=["-O0"],
        build_directory=str(folder),
        is_python_module=False,
        is_standalone=False,
    )
    return folder / "lms_test_extension.so"


def extension() -> Any:
    """The extension as torch.utils.cpp_extension.load returns it, in no list of modules."""
    spec = importlib.util.spec_from_file_location("lms_test_extension", built())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def copies(copy: Callable[..., None]) -> None:
    """The function finds its tensors."""
    source, target = away(data(4, 1)), away(data(4, 2))
    copy(target, source, stream())
    torch.cuda.synchronize()
    assert simulator().sim_device_error(0) == 0
    equal(target, data(4, 1))
    assert stat("pinned_bytes.current") == stat("protected_bytes.current") == 0


def check_functions_methods_and_submodules() -> None:
    loaded = extension()
    enable()
    for copy in (loaded.copy, loaded.nested.copy, loaded.Copier().copy):
        copies(copy)
    copies(lambda to, source, stream: loaded.copy_all([to], [source], stream))


def check_extension_that_is_loaded_later() -> None:
    built()
    enable()
    copies(extension().copy)
    copies(extension().Copier().copy)


def check_function_that_was_imported_before() -> None:
    loaded, module = extension(), types.ModuleType("lms_test_importer")
    stock = module.copy = loaded.copy  # type: ignore[attr-defined]  # from lms_test_extension import copy
    sys.modules["lms_test_importer"] = module
    enable()
    copies(module.copy)
    assert module.copy is loaded.copy and module.copy.__name__ == "copy"
    torch.lms.disable("cuda")
    assert module.copy is loaded.copy is stock
    enable()
    copies(module.copy)


def check_other_extensions_are_left_alone() -> None:
    import numpy

    stock = numpy._core._multiarray_umath.array
    enable()
    assert numpy._core._multiarray_umath.array is stock
    assert type(torch._C._cuda_getDeviceCount) is types.BuiltinFunctionType


def check_autograd_function() -> None:
    """The backward pass gets a tensor that was saved when there was room."""
    loaded = extension()

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(value)
            ctx.another = data(2, 9).cuda()
            result = torch.empty_like(value)
            loaded.copy(result, value, stream())
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            result = torch.empty_like(gradient)
            loaded.copy(result, ctx.saved_tensors[0], stream())
            loaded.copy(result, ctx.another, stream())
            return result

    enable(24 * MIB)
    values = [data(4, seed).cuda().requires_grad_() for seed in range(8)]
    for value in values:
        results = Copied.apply(value)
        torch.lms.reclaim("cuda")
        results.backward(away(data(4, 3)))
    assert not lost()
    for seed, value in enumerate(values):
        expected = data(4, seed)
        expected[: 2 * MIB // 4] = data(2, 9)
        assert value.grad is not None
        equal(value.grad, expected)


def check_a_compiler_sees_the_function() -> None:
    loaded = extension()
    enable()

    @torch.compile(backend="eager")
    def program(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        loaded.copy(target, source, 0)
        return target.view(2, -1)

    source, target = away(data(4, 1)), away(data(4, 2))
    equal(program(target, source).view(-1), data(4, 1))
