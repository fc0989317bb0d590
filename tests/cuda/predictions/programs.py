"""Training programs of the kinds that tests/cuda/train_programs trains to the bit, at sizes that keep a GPU busy.

Each function builds what it trains on the GPU; what it returns takes one step. For step_time.py, where nothing is
computed: a step must not depend on values. The last three use two GPUs, the last of all with a process for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import gpt
import models
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Step = Callable[[], object]

SIZE = gpt.Size(width=4096, layers=4, heads=32, length=2048, batch=8, vocabulary=16384)  # as ci/gpu/throughput.py
CONVNET = 32.0  # times as wide as lmsbuild's tests have it
WIDTH, ROWS = 4096, 8192  # of perceptrons
BFLOAT16 = partial(torch.autocast, "cuda", torch.bfloat16)


def perceptron(layers: int = 8, width: int = WIDTH) -> nn.Sequential:
    with torch.device("cuda"):
        return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())))


def rows(count: int = ROWS, width: int = WIDTH) -> Tensor:
    return torch.randn(count, width, device="cuda")


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        with BFLOAT16():
            loss = model(tokens)
        loss.backward()
        optimizer.step()

    return step


def transformer(recompute: bool = False, **options: bool) -> Step:
    model, optimizer, tokens = gpt.make(SIZE, recompute)
    if options:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)

    return training_step(model, optimizer, tokens)


def accumulating(width: int, layers: int, batches: int) -> Step:
    """The transformer with layers of another width, and the gradients of so many batches."""
    model, optimizer, tokens = gpt.make(replace(SIZE, width=width, layers=layers, heads=width // 128))

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(batches):
            with BFLOAT16():
                loss = model(tokens) / batches
            loss.backward()
        optimizer.step()

    return step


def scaled() -> Step:
    """Float16 under GradScaler."""
    model, optimizer, tokens = gpt.make(SIZE)
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(tokens)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def averaged() -> Step:
    """Accumulates the gradients of four small batches, clips them, and keeps an average of the parameters."""
    model, optimizer, tokens = gpt.make(SIZE)
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=torch.optim.swa_utils.get_ema_avg_fn(0.999))

    def step() -> None:
        optimizer.zero_grad()
        for part in tokens.chunk(4):
            with BFLOAT16():
                loss = model(part) / 4
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        average.update_parameters(model)

    return step


def in_backward() -> Step:
    """Hooks take each parameter's optimiser step in the backward pass, and free the gradient."""
    model, _, tokens = gpt.make(SIZE)
    optimizers = {parameter: torch.optim.AdamW([parameter], foreach=False) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)

    def step() -> None:
        with BFLOAT16():
            loss = model(tokens)
        loss.backward()

    return step


def streams() -> Step:
    """Three branches, each on a stream of its own."""
    with torch.device("cuda"):
        branches = nn.ModuleList(gpt.Layer(SIZE) for _ in range(3))
        x = torch.randn(SIZE.batch, SIZE.length, SIZE.width)
    optimizer = torch.optim.AdamW(branches.parameters(), foreach=False)
    sides = [torch.cuda.Stream() for _ in branches]

    def step() -> None:
        optimizer.zero_grad()
        current, outputs = torch.cuda.current_stream(), []
        for branch, side in zip(branches, sides, strict=True):
            side.wait_stream(current)
            with torch.cuda.stream(side), BFLOAT16():
                outputs.append(branch(x))
        for output, side in zip(outputs, sides, strict=True):
            current.wait_stream(side)
            output.record_stream(current)
        loss = sum(output.square().mean() for output in outputs)
        loss.backward()
        optimizer.step()

    return step


def loader() -> Step:
    """Batches from pinned memory, copied on a stream of their own."""
    with torch.device("cuda"):
        trainer = models.make("convnet", scale=CONVNET)
    data = TensorDataset(torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,)))
    batches = DataLoader(data, batch_size=8, pin_memory=True)
    copies = torch.cuda.Stream()
    rest = iter(batches)

    def step() -> None:
        nonlocal rest
        found = next(rest, None)
        if found is None:
            rest = iter(batches)
            found = next(rest)
        current = torch.cuda.current_stream()
        copies.wait_stream(current)
        with torch.cuda.stream(copies):
            images, labels = (part.to("cuda", non_blocking=True) for part in found)
        current.wait_stream(copies)
        images.record_stream(current)
        labels.record_stream(current)
        trainer.optimizer.zero_grad()
        functional.cross_entropy(trainer.model(images), labels).backward()
        trainer.optimizer.step()

    return step


def packed() -> Step:
    """Hooks save activations in half the bytes."""
    model, x = perceptron(), rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.bfloat16(), lambda saved: saved.float()):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return step


def penalty() -> Step:
    """Differentiates twice."""
    model, x = perceptron(), rows().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        y = model(x).square().mean()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        (y + 10 * (gradient.norm(dim=1) - 1).square().mean()).backward(inputs=list(model.parameters()))
        optimizer.step()

    return step


def functions() -> Step:
    """torch.func: every row's gradient, clipped."""
    model, x = perceptron(layers=4, width=1024), rows(256, 1024)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss_of(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (row,)).square().mean()

    each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))

    def step() -> None:
        gradients = each(weights, x)
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
        scale = (1 / norms).clamp(max=1)
        for name, weight in weights.items():
            weight.sub_(torch.einsum("n,n...->...", scale, gradients.pop(name)), alpha=0.1)

    return step


def graph() -> Step:
    """One model's step is a captured graph, whose memory stays; the other's is not."""
    (captured, other), x = (perceptron(), perceptron()), rows()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, foreach=False) for model in (captured, other)]

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train(captured, optimizers[0])
    torch.cuda.current_stream().wait_stream(side)
    whole = torch.cuda.CUDAGraph()
    with torch.cuda.graph(whole):
        train(captured, optimizers[0])

    def step() -> None:
        whole.replay()
        train(other, optimizers[1])

    return step


def pipeline() -> Step:
    """Micro-batches go from the first GPU to the second, and their gradients back."""
    small = replace(SIZE, layers=2)
    first, second = (nn.Sequential(*(gpt.Layer(small) for _ in range(2))).to(f"cuda:{index}") for index in range(2))
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], foreach=False)
    x = torch.randn(SIZE.batch, SIZE.length, SIZE.width, device="cuda:0")

    def step() -> None:
        optimizer.zero_grad()
        losses = []
        for part in x.chunk(4):
            with BFLOAT16():
                losses.append(second(first(part).to("cuda:1", non_blocking=True)).square().mean())
        for loss in losses:
            loss.backward()
        optimizer.step()

    return step


def data_parallel() -> Step:
    """Half of the batch on each GPU."""
    model, optimizer, tokens = gpt.make(SIZE)
    both = nn.DataParallel(model, [0, 1])

    def step() -> None:
        optimizer.zero_grad()
        with BFLOAT16():
            loss = both(tokens).mean()
        loss.backward()
        optimizer.step()

    return step


def processes() -> Step:
    """Half of the batch in each process, of which each has a GPU; they add up their gradients as they come."""
    dist.init_process_group(
        "nccl",
        init_method=f"file://{os.environ['LMS_TEST_MEETING']}",
        rank=int(os.environ["LMS_TEST_RANK"]),
        world_size=2,
    )
    model, optimizer, tokens = gpt.make(replace(SIZE, batch=SIZE.batch // 2))
    each = nn.parallel.DistributedDataParallel(model)
    return training_step(each, optimizer, tokens)


PROGRAMS: dict[str, Callable[[], Step]] = {
    "recomputed": partial(transformer, recompute=True),
    "foreach": partial(transformer, foreach=True),
    "fused": partial(transformer, fused=True),
    "scaled": scaled,
    "averaged": averaged,
    "in_backward": in_backward,
    "streams": streams,
    "loader": loader,
    "packed": packed,
    "penalty": penalty,
    "functions": functions,
    "graph": graph,
    "pipeline": pipeline,
    "data_parallel": data_parallel,
    "processes": processes,
}
