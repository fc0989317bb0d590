"""Small traces of programs that train, made by code: a stack of layers with parameters, gradients and a momentum."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from lmsreplay.trace import ALLOCATE, BEGIN, END, FREE, PAGE, READ, WRITE, Trace


class Program:
    """Writes events as the pager would record them."""

    def __init__(self, source: random.Random, layers: int = 32, weight_pages: int | None = None) -> None:
        """`source` draws the sizes, but those of the weights where they are given."""
        self.events: list[tuple[int, int, int]] = []
        self.starts: list[int] = []
        self.size: dict[int, int] = {}
        sizes = [weight_pages or source.randint(8, 24) for _ in range(layers)]
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

    def train_recurrent(self, time_steps: int, updates: list[int]) -> None:
        """One iteration of a network whose layers are applied once a time step, and whose weights are updated in that
        order: no update needs another's result, so a framework may run them as it likes.
        """
        self.starts.append(len(self.events))
        pages = self.activation_sizes[0]
        states = self.operation([], [], [pages] * len(self.weights))
        saved = []
        for _ in range(time_steps):
            saved.append(states)
            states = [self.operation([state, w], [], [pages])[0] for state, w in zip(states, self.weights, strict=True)]
        (upstream,) = self.operation([states[-1]], [], [pages])
        for block in states:
            self.free(block)
        gradients = self.operation([], [], [self.size[weight] // PAGE for weight in self.weights])
        for blocks in reversed(saved):
            for block, weight, gradient in zip(blocks, self.weights, gradients, strict=True):
                (downstream,) = self.operation([block, weight, upstream], [gradient], [pages])
                self.free(upstream)
                upstream = downstream
            for block in blocks:
                self.free(block)
        self.free(upstream)
        for index in updates:
            weight, momentum, gradient = self.weights[index], self.momenta[index], gradients[index]
            temporaries = []
            for _ in range(3):
                temporaries += self.operation([gradient, momentum], [], [self.size[weight] // PAGE])
            self.operation(temporaries, [momentum], [])
            self.operation([momentum], [weight], [])
            for block in temporaries:
                self.free(block)
        for gradient in gradients:
            self.free(gradient)

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


def train_recurrent(seed: int, iterations: int, layers: int = 8, time_steps: int = 30) -> Trace:
    """A trace of so many iterations, of which each updates the weights, all of one size, in an order of its own."""
    source = random.Random(seed)
    program = Program(source, layers, weight_pages=30)
    for _ in range(iterations):
        program.train_recurrent(time_steps, source.sample(range(layers), layers))
    return program.trace()
