"""Recording a trace: a model trains under a PyTorch with LMS, with a limit so large that nothing is paged."""

from __future__ import annotations

from pathlib import Path

from lmsreplay.trace import MARKER_BYTES

_NO_LIMIT = 1 << 50


def record(model: str, path: Path, *, iterations: int, scale: float, min_size: int, threads: int) -> None:
    """Trains ``model`` of :mod:`lmsbuild.programs.models` and writes what its blocks went through.

    :param path: the trace to write.
    :param iterations: how many optimiser steps; the first differs from the others, and the last is cut short.
    :param scale: of the model's width.
    :param min_size: bytes; smaller tensors are no blocks.
    :param threads: for the computation.
    :raises RuntimeError: the installed PyTorch has no LMS.
    """
    import torch

    from lmsbuild.programs import models

    if not hasattr(torch, "lms"):
        raise RuntimeError(f"torch {torch.__version__} has no torch.lms: install a wheel that lmsbuild made")
    torch.set_num_threads(threads)
    torch.lms.enable("cpu", limit=_NO_LIMIT, min_size=min_size)
    trainer = models.make(model, scale=scale)
    torch.lms.trace_start("cpu", path)
    try:
        for _ in range(iterations):
            torch.empty(MARKER_BYTES, dtype=torch.uint8)
            trainer.step()
    finally:
        torch.lms.trace_stop("cpu")
