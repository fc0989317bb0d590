"""Automatic mixed precision. Its lists of operators differ between the CPU and CUDA, so these programs use operators that
are on the same list of both."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from training import parameters_and_gradients, trains

STEPS = 4
WIDTH = 128


def train_in(dtype: torch.dtype, device: str) -> Iterator[Tensor]:
    kind = torch.device(device).type
    torch.manual_seed(1)
    with torch.device(device):
        model = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
        head = nn.Linear(WIDTH, 10)
    everything = nn.ModuleList([model, head])
    optimizer = torch.optim.SGD(everything.parameters(), lr=0.1, momentum=0.9, foreach=False)
    # So large that the first step overflows half precision, and is left out.
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**22, growth_interval=2, enabled=dtype == torch.float16)
    for step in range(STEPS):
        torch.manual_seed(10 + step)
        x, labels = torch.randn(96, WIDTH, device=device), torch.randint(0, 10, (96,), device=device)
        with torch.autocast(kind, dtype=dtype):
            y = head(model(x))
        loss = nn.functional.cross_entropy(y.float(), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(everything.parameters(), 1.0, foreach=False, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()
        yield loss
        yield torch.tensor(scaler.get_scale())
    yield from everything.parameters()
    yield from (parameter.grad for parameter in everything.parameters())


def check_train_in_half_precision() -> None:
    trains(lambda device: train_in(torch.float16, device))


def check_train_in_bfloat16() -> None:
    trains(lambda device: train_in(torch.bfloat16, device))


def check_train_with_half_parameters() -> None:
    def program(device: str) -> Iterator[Tensor]:
        torch.manual_seed(1)
        with torch.device(device):
            model = nn.Sequential(
                *(layer for _ in range(5) for layer in (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()))
            )
        master = [parameter.detach().clone() for parameter in model.parameters()]
        model.to(torch.bfloat16)
        for step in range(STEPS):
            torch.manual_seed(step)
            x = torch.randn(96, WIDTH, device=device, dtype=torch.bfloat16)
            loss = model(x).float().square().mean()
            loss.backward()
            with torch.no_grad():
                for whole, parameter in zip(master, model.parameters(), strict=True):
                    whole.sub_(parameter.grad.float(), alpha=0.1)
                    parameter.copy_(whole)
                    parameter.grad = None
            yield loss
        yield from master
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_in_16_bits_but_for_some() -> None:
    """Normalisations keep what their backward pass needs in types of their own."""

    def program(device: str) -> Iterator[Tensor]:
        for dtype in (torch.bfloat16, torch.float16):
            torch.manual_seed(1)
            with torch.device(device):
                model = nn.Sequential(
                    nn.Conv2d(3, 16, 3, padding=1, dtype=dtype),
                    nn.BatchNorm2d(16, dtype=dtype),
                    nn.GELU(),
                    nn.GroupNorm(4, 16),  # in float32
                    nn.Conv2d(16, 16, 3, padding=1, dtype=dtype),
                    nn.BatchNorm2d(16),
                    nn.InstanceNorm2d(16, affine=True, dtype=dtype),
                )
                images = [torch.randn(8, 3, 16, 16).to(dtype) for _ in range(3)]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
            for x in images:
                loss = model(x).float().square().mean() + model.eval()(x).float().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                model.train()
                yield loss
            yield from parameters_and_gradients(model)

    trains(program)


def check_train_with_observers() -> None:
    """Quantisation-aware: weights and activations are rounded to what integers would hold, and their ranges grow."""

    def program(device: str) -> Iterator[Tensor]:
        torch.manual_seed(1)
        found = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
        with torch.device(device):
            layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            roundings = nn.ModuleList(make().to(device) for _ in layers for make in (found.weight, found.activation))
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, foreach=False)
        for step in range(STEPS):
            torch.manual_seed(step)
            x = torch.randn(96, WIDTH, device=device)
            for index, layer in enumerate(layers):
                weight = roundings[2 * index](layer.weight)
                x = roundings[2 * index + 1](nn.functional.linear(x, weight, layer.bias).relu())
            loss = x.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss
        yield from parameters_and_gradients(layers)
        yield from (value.float() for value in roundings.state_dict().values())

    trains(program)
