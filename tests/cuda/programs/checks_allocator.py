"""The allocator below LMS: its settings and other backends, what it reports, memory that both sides need."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from cuda_support import MIB, away, data, enable, equal, page_out, simulate, stat, to_cuda

# Under another backend of the allocator, which is chosen when PyTorch is imported.
ASYNC = """
import torch
from cuda_support import MIB, data, enable, equal, page_out, stat, to_cuda
assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
values = [data(4, seed) for seed in range(6)]
before = values[0].cuda()
enable(8 * MIB)
tensors = to_cuda(values)
small = data(1)[:1000].cuda()
page_out()
for tensor, value in zip([*tensors, before, small], [*values, values[0], data(1)[:1000]]):
    equal(tensor, value)
torch.cuda.empty_cache()
torch.lms.disable("cuda")
equal(tensors[5], values[5])
assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
"""


def check_cuda_malloc_async() -> None:
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", ASYNC], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_expandable_segments() -> None:
    torch.cuda.init()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    values = [data(4, seed) for seed in range(6)]
    before = values[0].cuda()
    assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    enable(8 * MIB)
    tensors = to_cuda(values)
    small = values[0][:1000].cuda()
    page_out()
    torch.cuda.empty_cache()
    for tensor, value in zip([*tensors, before, small], [*values, values[0], values[0][:1000]], strict=True):
        equal(tensor, value)


def check_either_side_gives_memory_to_the_other() -> None:
    simulate(memory=128 * MIB)
    enable(96 * MIB, min_size=8 * MIB)
    values = [data(8, seed) for seed in range(10)]
    tensors = to_cuda(values)
    others = [data(7, seed).cuda() for seed in range(10)]  # more than is left: blocks leave
    for seed, (tensor, other) in enumerate(zip(tensors, others, strict=True)):
        equal(other, data(7, seed))
        equal(tensor, values[seed])
    del others, other
    assert torch.cuda.memory_reserved() > stat("device_bytes.current")
    torch.lms.set_limit("cuda", 112 * MIB)
    large = [data(8, 50 + seed).cuda() for seed in range(4)]  # and the other's cache is given up
    for seed, tensor in enumerate(large):
        equal(tensor, data(8, 50 + seed))


def check_snapshot_shows_what_is_resident() -> None:
    torch.cuda.init()
    enable()
    gone, there = away(data(4)), data(6, 1).cuda()
    snapshot = torch.cuda.memory_snapshot()
    segments = {segment["address"]: segment for segment in snapshot}
    assert gone.data_ptr() not in segments
    segment = segments[there.data_ptr()]
    assert segment["total_size"] == segment["allocated_size"] == 6 * MIB and segment["segment_type"] == "large"
    (block,) = segment["blocks"]
    assert block["size"] == 6 * MIB and block["state"] == "active_allocated" and block["address"] == there.data_ptr()
    del segment, there
    assert stat("resident_bytes.current") == 0
    assert all(known["total_size"] != 6 * MIB for known in torch.cuda.memory_snapshot())


def check_history_goes_on() -> None:
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=100)
    enable()
    small, managed = torch.empty(1000, device="cuda"), data(4).cuda()
    snapshot = torch.cuda.memory._snapshot()
    traced = {entry["addr"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"}
    assert small.data_ptr() in traced and managed.data_ptr() not in traced
    assert managed.data_ptr() in {segment["address"] for segment in snapshot["segments"]}
    torch.cuda.memory._record_memory_history(enabled=None)


def check_memory_fraction() -> None:
    simulate(memory=1 << 30)
    enable(512 * MIB)
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.lms.limit("cuda") == 256 * MIB
    tensors = to_cuda([data(32, seed) for seed in range(12)])
    assert torch.cuda.memory_reserved() <= 256 * MIB
    for seed, tensor in enumerate(tensors):
        equal(tensor, data(32, seed))
