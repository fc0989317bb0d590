"""Two processes on one GPU, whose memory they share: what one has the simulated driver refuses to the other."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

import tensorflow as tf
from checks_train_strictness import work
from common import MIB, directory
from train_support import MIN_SIZE, on_cpu, operators, prepare, same, stats

if TYPE_CHECKING:
    from train_support import Results

MEMORY = 64 * MIB  # of the GPU; two of the programs need more


def train(expected: Results, weight: float) -> None:
    prepare()
    operators()
    tf.lms.enable("gpu:0", share=tf.lms.Share("pair", weight=weight), min_size=MIN_SIZE)
    for _ in range(4):
        with tf.device("GPU:0"):
            same(work(), expected)
    found = stats()
    assert 0 < found["share.budget_bytes"] < MEMORY and found["in.bytes"] > 0, found


def start(expected: Results, weight: float) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(expected, weight)
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return child


def check_two_processes_share_a_gpu() -> None:
    expected = on_cpu(work)
    with directory() as folder:
        os.environ.update(LMS_SHARE=folder + "/meet", SIM_CUDA_SHARED=folder + "/device", SIM_CUDA_MEMORY=str(MEMORY))
        children = [start(expected, weight) for weight in (1.0, 2.0)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
