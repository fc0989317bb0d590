"""Trains one case, with the stock allocator or under a limit, and answers with losses and a digest: exact.

Usage: train_case.py CASE STEPS SCALE MODELS [LIMIT [POLICY]]. MODELS is the file models.py of the tool, LIMIT in bytes; 0
is the default limit, under which everything fits.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from answer import answer
from gpt import Size, make
from resnet import make as make_resnet
from torch import Tensor, nn
from torch.nn import functional

_SMALL = Size(width=512, layers=8, heads=8, length=256, batch=8, vocabulary=2048)
_ODD = Size(width=1125, layers=7, heads=9, length=243, batch=7, vocabulary=3001)
_WIDE = Size(width=4096, layers=2, heads=32, length=2048, batch=4, vocabulary=16384)
_MIN_SIZE = 1 << 20  # bytes

# Operations for which PyTorch has no deterministic kernel on CUDA in general, but a deterministic one for the shapes of
# these models: each is one that adds up atomically only where windows overlap (pooling), or more than two partial sums
# (the loss, of a batch of two).
_DETERMINISTIC_HERE: dict[str, tuple[str, ...]] = {
    "convnet": ("adaptive_avg_pool2d_backward_cuda",),
    "unet3d": ("avg_pool3d_backward_cuda", "nll_loss2d_forward"),
}


class Training:
    """Losses step by step, and the tensors that two runs must agree on."""

    def __init__(self, step: Callable[[], Tensor | float], modules: list[nn.Module]) -> None:
        self.step = step
        self.modules = modules

    def tensors(self) -> Iterator[Tensor]:
        for module in self.modules:
            for parameter in module.parameters():
                yield parameter.detach()
                if parameter.grad is not None:
                    yield parameter.grad


def _model(name: str, scale: float, file: str) -> Training:
    spec = importlib.util.spec_from_file_location("models", file)
    assert spec is not None and spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    with torch.device("cuda"):
        trainer = models.make(name, scale=scale)
    return Training(trainer.step, [trainer.model])


def _odd(scale: float) -> Training:
    """The transformer with no size that is a power of two."""
    return _stepped(*make(_scaled(scale, _ODD)))


def _resnet(scale: float) -> Training:
    return _stepped(*make_resnet(scale))


def _stepped(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: Tensor) -> Training:
    """Training on one batch, of which the model gives the loss."""

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, [model])


def _wide(scale: float) -> Training:
    """Few wide layers in bfloat16: blocks of hundreds of MiB, and kernels that the device is far behind with."""
    model, optimizer, tokens = make(_scaled(scale, _WIDE))

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, [model])


def _compiled(scale: float) -> Training:
    """The forward and the backward pass as inductor compiles them."""
    model, optimizer, tokens = make(_scaled(scale))
    compiled = torch.compile(model)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = compiled(tokens)
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, [model])


def _amp(scale: float) -> Training:
    """Automatic mixed precision in float16, with a gradient scaler."""
    model, optimizer, tokens = make(_scaled(scale))
    scaler = torch.amp.GradScaler("cuda")

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(tokens)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(step, [model])


def _streams(scale: float) -> Training:
    """Two models on two streams, one computing with the other's output, fed by a third stream from pinned memory."""
    first, first_optimizer, tokens = make(_scaled(scale))
    second, second_optimizer, _ = make(_scaled(scale))
    batches = [tokens.roll(shift).cpu().pin_memory() for shift in range(3)]
    feeder, left, right = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (feeder, left, right):
        stream.wait_stream(torch.cuda.current_stream())
    count = 0

    def step() -> Tensor:
        nonlocal count
        with torch.cuda.stream(feeder):
            batch = batches[count % len(batches)].to("cuda", non_blocking=True)
        count += 1
        with torch.cuda.stream(left):
            left.wait_stream(feeder)
            batch.record_stream(left)
            first_optimizer.zero_grad()
            loss = first(batch)
            loss.backward()
            first_optimizer.step()
            taught = first.head.weight.detach() * 0.5
        with torch.cuda.stream(right):
            right.wait_stream(feeder)
            batch.record_stream(right)
            second_optimizer.zero_grad()
            own = second(batch)
            right.wait_stream(left)
            taught.record_stream(right)
            total = own + functional.mse_loss(second.head.weight, taught)
            total.backward()
            second_optimizer.step()
        del batch, taught  # while both streams still use them
        torch.cuda.current_stream().wait_stream(left)
        torch.cuda.current_stream().wait_stream(right)
        return loss + total

    return Training(step, [first, second])


def _graphs(scale: float) -> Training:
    """A part of the model is captured in CUDA graphs when the rest has already been paged out and in."""
    size = _scaled(scale)
    model, optimizer, tokens = make(size)
    with torch.device("cuda"):
        extra = nn.Sequential(nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width))
        optimizer.add_param_group({"params": list(extra.parameters())})
        sample = torch.randn(size.batch * size.length, size.width, requires_grad=True)
    graphed: Callable[[Tensor], Tensor] = extra
    count = 0

    def step() -> Tensor:
        nonlocal graphed, count
        if count == 2:
            graphed = torch.cuda.make_graphed_callables(extra, (sample,))
        count += 1
        optimizer.zero_grad()
        loss = model(tokens)
        loss = loss + graphed(model.tokens(tokens[:, :-1]).flatten(0, 1)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, [model, extra])


def _scaled(scale: float, size: Size = _SMALL) -> Size:
    """With more or fewer heads of the same width."""
    heads = max(1, int(size.heads * scale))
    return replace(size, width=size.width // size.heads * heads, heads=heads)


_OWN: dict[str, Callable[[float], Training]] = {
    "odd": _odd,
    "resnet": _resnet,
    "wide": _wide,
    "compiled": _compiled,
    "amp": _amp,
    "streams": _streams,
    "graphs": _graphs,
}


def _digest(tensors: Iterator[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.cpu().contiguous()
        digest.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return digest.hexdigest()


def main(case: str, steps: int, scale: float, file: str, limit: int | None, policy: str) -> None:
    expected = _DETERMINISTIC_HERE.get(case, ())
    torch.use_deterministic_algorithms(True, warn_only=bool(expected))
    if limit is not None:
        torch.lms.enable("cuda", limit=limit or None, min_size=_MIN_SIZE, policy=policy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training = _OWN[case](scale) if case in _OWN else _model(case, scale, file)
        losses = [float(training.step()).hex() for _ in range(steps)]
    values: dict[str, Any] = {"losses": losses}
    said = [str(warning.message) for warning in caught if "deterministic" in str(warning.message)]
    values["undeterministic"] = sorted({text for text in said if not any(name in text for name in expected)})
    values["digest"] = _digest(training.tensors())
    if limit is not None:
        values["statistics"] = torch.lms.stats("cuda")
    answer(values)


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        sys.argv[4],
        int(sys.argv[5]) if len(sys.argv) > 5 else None,
        sys.argv[6] if len(sys.argv) > 6 else "iteration",
    )
