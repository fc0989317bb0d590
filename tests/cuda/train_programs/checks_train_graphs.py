"""CUDA graphs that are captured and replayed between steps of the usual kind. Host functions are their kernel nodes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from perceptrons import WIDTH, perceptron, sample
from torch import Tensor, nn
from training import parameters_and_gradients, trains


def check_train_replays_a_step() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model, other = perceptron(device), perceptron(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        x, loss = sample(device, 0), None
        graph = None

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        for number in range(9):
            x.copy_(sample(device, number))
            if device == "cpu" or number < 3:
                side = torch.cuda.Stream() if device != "cpu" else None
                if side is None:
                    loss = step()
                else:
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        loss = step()
                    torch.cuda.current_stream().wait_stream(side)
            elif graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    loss = step()
                graph.replay()  # a capture runs nothing
            else:
                graph.replay()
            yield loss.clone()
            other(sample(device, 20 + number)).square().mean().backward()  # is paged beside the graph
        yield from parameters_and_gradients(model)
        yield from parameters_and_gradients(other)

    trains(program)


def check_train_callables_made_of_graphs() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        head = nn.Linear(WIDTH, WIDTH, device=device)
        part: nn.Module = model[:6]
        if device != "cpu":
            part = torch.cuda.make_graphed_callables(part, (sample(device, 0).requires_grad_(),))
        for step in range(4):
            loss = head(model[6:](part(sample(device, step).requires_grad_()))).square().mean()
            model.zero_grad()  # a graph writes its gradients over those of the step before
            loss.backward()
            yield loss
        yield from parameters_and_gradients(model)

    trains(program)
