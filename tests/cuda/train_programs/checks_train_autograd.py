"""What programs hang into autograd: hooks, saved tensors elsewhere, double backward, functions of their own, torch.func."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from perceptrons import perceptron, sample
from raw_kernels import launch_scale
from torch import Tensor
from training import KIB, MIN_SIZE, parameters_and_gradients, trains

STEPS = 3


def check_train_with_hooks() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        seen: list[Tensor] = []
        for module in model[::2]:
            module.register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()) or output * 1.01)
            module.register_full_backward_hook(lambda _module, _inputs, outputs: seen.append(outputs[0].clone()))
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 2)
        for step in range(STEPS):
            seen.clear()
            y = model(sample(device, step))
            y.register_hook(lambda gradient: seen.append(gradient))
            y.square().mean().backward()
        yield from seen
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_steps_in_the_backward_pass() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}

        def step_one(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step_one)
        for step in range(STEPS):
            loss = model(sample(device, step)).square().mean()
            loss.backward()
            yield loss
        yield from model.parameters()

    trains(program)


def check_train_saves_tensors_elsewhere() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        for step in range(STEPS):
            model.zero_grad()
            with torch.autograd.graph.save_on_cpu(pin_memory=device != "cpu"):
                y = model(sample(device, step))
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x * 1):
                loss = (model(y) ** 3).mean()
            loss.backward()
            yield loss
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_with_a_gradient_penalty() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for step in range(STEPS):
            x = sample(device, step).requires_grad_()
            y = model(x).square().mean()
            (gradient,) = torch.autograd.grad(y, x, create_graph=True)
            loss = y + 10 * (gradient.norm(dim=1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss
        yield from parameters_and_gradients(model)

    # In which order the second pass adds gradients up depends on the thread that made them, which a device has its own.
    trains(program, reference="cuda:0")


class Scaled(torch.autograd.Function):
    """Calls that kernel, on a GPU, between operators."""

    @staticmethod
    def forward(context, x: Tensor, factor: float) -> Tensor:  # type: ignore[no-untyped-def]
        context.factor = factor
        return Scaled.scale(x, factor)

    @staticmethod
    def backward(context, gradient: Tensor):  # type: ignore[no-untyped-def]
        return Scaled.scale(gradient.contiguous(), context.factor), None

    @staticmethod
    def scale(x: Tensor, factor: float) -> Tensor:
        if not x.is_cuda:
            return x * factor
        result = torch.empty_like(x)
        with torch.lms.pin(x, result):
            launch_scale(result, x, factor, torch.cuda.current_stream(x.device))
        return result


def check_train_with_a_function_that_pins_what_its_kernel_uses() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        for step in range(STEPS):
            y = sample(device, step).requires_grad_()
            for layer in model:
                y = Scaled.apply(layer(y), 1.25)
            y.square().mean().backward()
            yield y
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_kernel_that_pins_nothing_is_an_error() -> None:
    torch.lms.enable("cuda", limit=64 << 20, min_size=MIN_SIZE)
    source, target = torch.ones(64 * KIB, device="cuda"), torch.zeros(64 * KIB, device="cuda")
    launch_scale(target, source, 2.0, torch.cuda.current_stream())
    assert target.cpu().eq(2).all()
    assert torch.lms.reclaim("cuda") > 0
    try:
        launch_scale(target, source, 2.0, torch.cuda.current_stream())
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "illegal memory access" in str(error), error
    else:
        raise AssertionError("the kernel read memory that was not there")


def check_train_with_functional_transforms() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss_of(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(model, weights, (x,)).square().mean()

        for step in range(STEPS):
            x = sample(device, step)[:16]
            each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(weights, x)
            norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in each.values()]).norm(dim=0)
            scale = (1 / norms).clamp(max=1)
            weights = {
                name: weight - 0.1 * torch.einsum("n,n...->...", scale, each[name]) for name, weight in weights.items()
            }
            yield norms
        tangents = {name: torch.ones_like(weight) for name, weight in weights.items()}
        yield from torch.func.jvp(lambda w: loss_of(w, sample(device, 9)), (weights,), (tangents,))
        yield torch.func.hessian(lambda x: loss_of(weights, x))(sample(device, 8)[0, :])[:8]
        yield from weights.values()

    trains(program)
