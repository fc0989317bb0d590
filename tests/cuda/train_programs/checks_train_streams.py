"""Several streams, ordered by events alone, and what is freed while another stream still uses it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from perceptrons import WIDTH, perceptron
from raw_kernels import launch_scale
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from training import parameters_and_gradients, trains

STEPS = 3


class Stream:
    """A stream of the device; on the CPU, nothing."""

    def __init__(self, device: str) -> None:
        self.stream = torch.cuda.Stream(device) if device != "cpu" else None

    def __enter__(self) -> None:
        """What is enqueued from here on waits for what the current stream has been given."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            self._inside = torch.cuda.stream(self.stream)
            self._inside.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self._inside.__exit__(*error)

    def join(self, *used: Tensor) -> None:
        """The current stream waits for this one; tensors made here are used there."""
        if self.stream is not None:
            current = torch.cuda.current_stream(self.stream.device)
            current.wait_stream(self.stream)
            for tensor in used:
                tensor.record_stream(current)


def check_train_branches_on_streams_of_their_own() -> None:
    def program(device: str) -> Iterator[Tensor]:
        branches = [perceptron(device, seed) for seed in range(3)]
        streams = [Stream(device) for _ in branches]
        for step in range(STEPS):
            torch.manual_seed(step)
            x = torch.randn(64, WIDTH, device=device)
            outputs = []
            for branch, stream in zip(branches, streams, strict=True):
                with stream:
                    outputs.append(branch(x))
            for output, stream in zip(outputs, streams, strict=True):
                stream.join(output)
            loss = torch.stack(outputs).square().mean()
            loss.backward()
            with torch.no_grad():
                for branch in branches:
                    for parameter in branch.parameters():
                        parameter.sub_(parameter.grad, alpha=0.1)
                        parameter.grad = None
            yield loss
        for branch in branches:
            yield from branch.parameters()

    trains(program)


def check_train_frees_what_another_stream_uses() -> None:
    """The producer's tensors die at once; only record_stream keeps their memory for the consumer."""

    def program(device: str) -> Iterator[Tensor]:
        weight = perceptron(device)[0].weight.detach()
        side = Stream(device)
        total = torch.zeros(256, WIDTH, device=device)
        for step in range(24):
            torch.manual_seed(step)
            made = torch.randn(256, WIDTH, device=device)
            with side:
                total = total + made @ weight
                if side.stream is not None:
                    made.record_stream(side.stream)
            del made
            torch.full((256, WIDTH), float("inf"), device=device)  # would be given its memory, and be read
        side.join(total)
        yield total

    trains(program)


def check_train_frees_what_a_kernel_of_another_stream_uses() -> None:
    """The same with a kernel that no operator announces, and no pin: only record_stream tells of its stream. So it needs
    memory enough.
    """

    def program(device: str) -> Iterator[Tensor]:
        side = Stream(device)
        kept = [torch.zeros(256, WIDTH, device=device) for _ in range(6)]
        for step in range(24):
            torch.manual_seed(step)
            made, result = torch.randn(256, WIDTH, device=device), torch.empty(256, WIDTH, device=device)
            if side.stream is None:
                result.copy_(made * 2)
            else:
                side.stream.wait_stream(torch.cuda.current_stream())
                launch_scale(result, made, 2.0, side.stream)
                made.record_stream(side.stream)
                result.record_stream(side.stream)
            del made
            torch.full((256, WIDTH), float("inf"), device=device)  # would be given its memory, and be read
            if side.stream is not None:
                torch.cuda.current_stream().wait_stream(side.stream)
            kept[step % len(kept)].add_(result)
        yield from kept

    trains(program, factors=(1.0,))


def check_train_passes_work_along_by_events() -> None:
    """A chain of streams, each of which waits for an event of the one before; the host never waits."""

    def program(device: str) -> Iterator[Tensor]:
        layers = perceptron(device)
        streams = [torch.cuda.Stream(device) for _ in range(3)] if device != "cpu" else []
        outputs = []
        for step in range(6):
            torch.manual_seed(step)
            x = torch.randn(64, WIDTH, device=device)
            event = None
            for index, layer in enumerate(layers[:9]):
                if not streams:
                    x = layer(x)
                    continue
                stream = streams[index % len(streams)]
                stream.wait_stream(torch.cuda.current_stream()) if event is None else stream.wait_event(event)
                with torch.no_grad(), torch.cuda.stream(stream):
                    x.record_stream(stream)
                    x = layer(x)
                    event = stream.record_event()
            if event is not None:
                torch.cuda.current_stream().wait_event(event)
                x.record_stream(torch.cuda.current_stream())
            outputs.append(x * 2)
        yield from outputs

    trains(program)


def check_train_from_a_data_loader_with_pinned_memory() -> None:
    def program(device: str) -> Iterator[Tensor]:
        torch.manual_seed(7)
        data = TensorDataset(torch.randn(512, WIDTH), torch.randint(0, WIDTH, (512,)))
        on_gpu = device != "cpu"
        loader = DataLoader(data, batch_size=96, shuffle=True, pin_memory=on_gpu, num_workers=1)
        model = perceptron(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        copies = Stream(device)
        for _ in range(2):
            for x, labels in loader:
                assert x.is_pinned() == on_gpu
                with copies:
                    x = x.to(device, non_blocking=True)
                    labels = labels.to(device, non_blocking=True)
                copies.join(x, labels)
                loss = nn.functional.cross_entropy(model(x), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_pages_out_what_was_just_written() -> None:
    """Of an operation's two results one takes memory that is free, and for the other something has to leave, which is waited
    for; the kernel that writes both comes after that.
    """

    def program(device: str) -> Iterator[Tensor]:
        kept = [torch.full((64, WIDTH), float(index), device=device) for index in range(8)]
        for step in range(4):
            torch.manual_seed(step)
            x, free = (torch.randn(64, WIDTH, device=device) for _ in range(2))
            if device != "cpu":
                for tensor in kept:  # what leaves was used since the last operation
                    tensor.record_stream(torch.cuda.current_stream())
            del free
            values, indices = x.sort()
            kept = [torch.full((64, WIDTH), float(index), device=device) for index in range(8)]
            yield values
            yield indices
        yield from kept

    trains(program)
