"""Small traces of programs that train, made by code: a stack of layers with parameters, gradients and a momentum."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from lmsreplay.trace import ALLOCATE, BEGIN, END, FREE, PAGE, READ, WRITE, Trace


class Program:
    """Writes events as the pager would record them."""

    def __init__(self, source: random.Random, layers: int = 32) -> None:
        """`source` draws the sizes."""
        self.events: list[tuple[int, int, int]] = []
        self.starts: list[int] = []
        self.size: dict[int, int] = {}
        sizes = [source.randint(8, 24) for _ in range(layers)]
        self.activation_sizes = [source.randint(16, 48) for _ in range(layers + 1)]
        self.weights = [self.allocate(size) for size in sizes]
        self.momenta = [self.allocate(size) for size in sizes]
        self.gradients: list[int] = []

    def allocate(self, pages: int) -> int:
        block = len(self.size)
        self.size[block] = pages * PAGE
        self.events.append((ALLOCATE, block, pages * PAGE))
        return block

    def free(self, block: int) -> None:
        self.events.append((FREE, block, self.size[block]))

    def operation(self, reads: list[int], writes: list[int], makes: list[int]) -> list[int]:
        """An operation with these inputs, which allocates blocks of so many pages, and a temporary one."""
        self.events.append((BEGIN, -1, 0))
        self.events += [(READ, block, self.size[block]) for block in reads]
        self.events += [(WRITE, block, self.size[block]) for block in writes]
        made = [self.allocate(pages) for pages in makes]
        if made:
            self.free(self.allocate(4))
        self.events.append((END, -1, 0))
        return made

    def forward(self) -> list[int]:
        activations = self.operation([], [], [self.activation_sizes[0]])
        for weight, pages in zip(self.weights, self.activation_sizes[1:], strict=True):
            activations += self.operation([activations[-1], weight], [], [pages])
        return activations

    def train(self) -> None:
        """One iteration."""
        self.starts.append(len(self.events))
        for gradient in self.gradients:
            self.free(gradient)
        activations = self.forward()
        (upstream,) = self.operation([activations[-1]], [], [self.activation_sizes[-1]])
        gradients = []
        for layer in reversed(range(len(self.weights))):
            weight = self.weights[layer]
            makes = [self.size[weight] // PAGE, self.activation_sizes[layer]]
            gradient, downstream = self.operation([upstream, activations[layer], weight], [], makes)
            self.free(upstream)
            self.free(activations[layer + 1])
            gradients.append(gradient)
            upstream = downstream
        self.free(upstream)
        self.free(activations[0])
        self.gradients = gradients[::-1]
        for weight, momentum, gradient in zip(self.weights, self.momenta, self.gradients, strict=True):
            self.operation([gradient], [momentum], [])
            self.operation([momentum], [weight], [])

    def evaluate(self) -> None:
        """A forward pass that keeps no activations."""
        self.starts.append(len(self.events))
        (activation,) = self.operation([], [], [self.activation_sizes[0]])
        for weight, pages in zip(self.weights, self.activation_sizes[1:], strict=True):
            (following,) = self.operation([activation, weight], [], [pages])
            self.free(activation)
            activation = following
        self.free(activation)

    def trace(self) -> Trace:
        count = len(self.events)
        columns = list(zip(*self.events, strict=True))
        return Trace(
            name="synthetic",
            kind=np.array(columns[0], np.uint8),
            time=np.arange(count, dtype=np.int64) * 1000,
            thread=np.zeros(count, np.int32),
            block=np.array(columns[1], np.int64),
            nbytes=np.array(columns[2], np.int64),
            iterations=np.array([*self.starts, count], np.int64),
        )


def train(
    source: random.Random | int,
    iterations: int,
    between: Callable[[Program, int], None] | None = None,
    layers: int = 32,
) -> Trace:
    """A trace of so many iterations; ``between`` may add to it before each of them (counted from 0).

    ``source`` draws the sizes, or is the seed of what does.
    """
    program = Program(random.Random(source) if isinstance(source, int) else source, layers)
    for iteration in range(iterations):
        if between is not None:
            between(program, iteration)
        program.train()
    return program.trace()
