"""Stores in files, and limit="auto". tests/e2e/programs has more of both, which does not depend on the framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import tensorflow as tf
from common import MIB, Group, directory, entering, group_of, raises

# Trains a model that needs some 500 MiB; prints what its weights hold, and the statistics.
TRAIN = """
import hashlib, json, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(0)
arguments = json.loads(sys.argv[1])
if arguments:
    tf.lms.enable("cpu", **arguments)
model = tf.keras.Sequential([tf.keras.layers.Dense(1536, activation="relu") for _ in range(12)])
model.add(tf.keras.layers.Dense(1))
model.build((None, 1536))
optimizer = tf.keras.optimizers.Adam()
optimizer.build(model.trainable_variables)  # else what TensorFlow needs to fold its first values is outside of LMS
model.compile(optimizer, "mse", jit_compile=False)
inputs = np.random.default_rng(0).standard_normal((32 * 4, 1536)).astype("float32")
model.fit(inputs, inputs[:, :1], batch_size=32, epochs=2, shuffle=False, verbose=0)
stats = tf.lms.stats("cpu") if arguments else {}
digest = hashlib.sha256()
for weight in model.weights:
    digest.update(weight.numpy().tobytes())
print(json.dumps([digest.hexdigest(), stats]))
"""


def trained(group: Group | None = None, **arguments: Any) -> tuple[str, dict[str, int]]:
    """The weights' hash, and the statistics at the end, of a process of its own."""
    result = subprocess.run(
        entering(group, sys.executable, "-c", TRAIN, json.dumps(arguments)),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result
    digest, stats = json.loads(result.stdout.splitlines()[-1])
    return digest, stats


def check_stores_in_files() -> None:
    stock, _ = trained()
    with directory() as first, directory() as second:
        for options in ({"store": [first, second]}, {"store": first, "checksum": False}):
            digest, stats = trained(limit="128MiB", **options)
            assert digest == stock and stats["out.bytes"] > 128 * MIB, (options, digest, stats)
        with raises(ValueError, "'/nowhere' is not a directory"):
            tf.lms.enable("cpu", limit="1GiB", store=[first, "/nowhere"])


def check_a_limit_that_follows_ram() -> None:
    stock, _ = trained()
    digest, stats = trained(limit="auto")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert digest == stock and 0 < stats["limit_bytes"] < memory, (digest, stats)
    with group_of(500 * MIB) as group:
        digest, stats = trained(group, limit="auto")
    assert digest == stock and stats["limit_bytes"] < stats["allocated_bytes.peak"], (digest, stats)
    assert stats["out.bytes"] > 0, stats
