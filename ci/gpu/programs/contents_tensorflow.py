"""A random program that only copies, within a device, between GPUs and to the host, under a limit; compares every byte.

Usage: contents_tensorflow.py LIMIT FACTOR OPERATIONS SEED. The tensors of each GPU take FACTOR times the limit.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from answer import answer

_TENSORS = 16

limit, factor, operations, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
gpus = len(tf.config.list_physical_devices("GPU"))
for gpu in range(gpus):
    tf.lms.enable(f"gpu:{gpu}", limit=limit)
random = np.random.default_rng(seed)
elements = int(limit * factor) // _TENSORS // 4
tensors: dict[int, Any] = {}
contents: dict[int, Any] = {}
wrong: list[int] = []


def copied(tensor: Any) -> Any:
    """A new tensor that the device copies into."""
    return tf.raw_ops.Copy(input=tensor, tensor_name="tensor:0", debug_ops_spec=["DebugIdentity;file:///nowhere;0"])


def is_right(key: int) -> bool:
    return bool(tensors[key].numpy().tobytes() == contents[key].tobytes())


for operation in range(operations):
    key = int(random.integers(_TENSORS * gpus))
    action = int(random.integers(5))
    with tf.device(f"GPU:{int(random.integers(gpus))}"):
        if key not in tensors or action == 0:
            contents[key] = random.integers(0, 2**31, elements, dtype=np.int32).view(np.float32)
            tensors[key] = tf.Variable(contents[key]) if random.integers(2) else tf.constant(contents[key])
        elif action == 1:
            tensors[key] = copied(tensors[key])
        elif action == 2:
            tensors[key] = tf.identity(tensors[key])
        elif action == 3:
            with tf.device("CPU:0"):
                on_host = tf.identity(tensors[key])
            tensors[key] = tf.identity(on_host)
        elif not is_right(key):
            wrong.append(operation)
wrong += [operations + key for key in tensors if not is_right(key)]
sums: dict[str, int] = {}
for gpu in range(gpus):
    for name, value in tf.lms.stats(f"gpu:{gpu}").items():
        sums[name] = sums.get(name, 0) + value
answer({"wrong": wrong, "tensor_bytes": sums["allocated_bytes.peak"], "statistics": sums, "gpus": gpus})
