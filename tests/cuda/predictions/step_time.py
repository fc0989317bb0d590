"""Trains a model on the simulated GPU in virtual time, and prints as JSON what a step takes there.

Usage: step_time.py MODEL MODE TIMELINE [TAPE]. MODEL: transformer, one of WIDER or programs.PROGRAMS, or
transformer:WIDTH:LAYERS:BATCHES, which adds up the gradients of so many batches before the optimiser's step. MODE: stock,
lms:LIMIT[:MIN_SIZE] (as in ci/gpu/programs/side.py), save_on_cpu, checkpoint. TIMELINE: where the
table of what happened in the measured steps goes. TAPE: where what the program does goes (operators/tape.h), without
LMS.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "ci/gpu/programs"), str(ROOT / "tools/lmsbuild/programs")]

import models
import side
from answer import answer

import programs

WARM_UP = 6  # steps, as ci/gpu/throughput.py
STEPS = 6
STEPS_WITH_LMS = 24  # no two are alike
# lmsbuild's models, so much wider, with the layers that checkpointing recomputes.
WIDER = {"convnet": (programs.CONVNET, "_Residual"), "lstm": (16.0, "LSTM"), "unet3d": (48.0, "_Volume")}


def recompute(model: torch.nn.Module, layer: str) -> None:
    for module in model.modules():
        if type(module).__name__ == layer:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def step_of(model: str, mode: str) -> Callable[[], object]:
    """Builds the model on the device; one call is one training step."""
    if model == "transformer":
        return side.Side(mode, programs.SIZE).step
    for device in range(torch.cuda.device_count()):
        side.enable(mode, f"cuda:{device}")
    if model in programs.PROGRAMS:
        take = programs.PROGRAMS[model]()
    elif model.startswith("transformer:"):
        take = programs.accumulating(*map(int, model.split(":")[1:]))
    else:
        scale, layer = WIDER[model]
        with torch.device("cuda"):
            trainer = models.make(model, scale=scale)
        if mode == "checkpoint":
            recompute(trainer.model, layer)
        take = trainer.step

    def step() -> None:
        with side.saving(mode):
            take()

    return step


def main(model: str, mode: str, timeline: str, tape: str | None = None) -> None:
    simulator = ctypes.CDLL("libcuda.so.1")
    simulator.sim_now.restype = ctypes.c_uint64
    torch.cuda.init()  # the allocators that a tape is taken of
    devices = range(torch.cuda.device_count())
    operators = ctypes.CDLL(os.environ["LMS_TEST_OPERATORS"])
    assert tape is None or operators.operators_tape(tape.encode()) == 0
    step = step_of(model, mode)
    moments: list[int] = []
    last = WARM_UP + (STEPS_WITH_LMS if mode.startswith("lms:") else STEPS)
    for number in range(last + 1):
        for device in devices:  # as a program that reads its loss, which does not wait for LMS's copies out
            torch.cuda.default_stream(device).synchronize()
        if number == WARM_UP:
            assert simulator.sim_write_timeline(b"/dev/null") == 0  # forgets the warm-up
        if number >= WARM_UP:
            moments.append(simulator.sim_now())
        if number < last:
            step()
            operators.operators_step()
    assert tape is None or operators.operators_tape(None) == 0
    assert simulator.sim_write_timeline(timeline.encode()) == 0
    answer({"moments_ns": moments, "peak_bytes": max(torch.cuda.max_memory_allocated(device) for device in devices)})


if __name__ == "__main__":
    main(*sys.argv[1:])
