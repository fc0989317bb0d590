"""Processes that share a budget of RAM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from common import MIB, directory, raises

# Trains a model that needs some 30 MiB; prints what its weights hold, and the statistics.
TRAIN = """
import hashlib, json, os, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(0)
if len(sys.argv) > 2:
    tf.lms.enable("cpu", limit="16MiB", store=sys.argv[1], share=tf.lms.Share("train", weight=float(sys.argv[2])))
model = tf.keras.Sequential([tf.keras.layers.Dense(512, activation="relu") for _ in range(8)])
model.add(tf.keras.layers.Dense(1))
model.compile("adam", "mse", jit_compile=False)
inputs = np.random.default_rng(0).standard_normal((64 * 24, 64)).astype("float32")
most = 0
for _ in range(6):
    model.fit(inputs, inputs[:, :1], batch_size=64, epochs=1, shuffle=False, verbose=0)
    most = max(most, tf.lms.stats("cpu")["share.processes"])
digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
print(json.dumps([digest, most, tf.lms.stats("cpu")]))
"""


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TF_LMS")}
    return subprocess.Popen(
        [sys.executable, "-c", *words],
        env={**clean, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> Any:
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def check_two_that_train() -> None:
    with directory() as folder:
        meet = {"LMS_SHARE": str(Path(folder, "meet"))}
        digest, _, _ = answer(start(TRAIN, folder))
        pair = [start(TRAIN, folder, weight, **meet) for weight in ("1", "2")]
        for other, together, stats in map(answer, pair):
            assert other == digest and stats["share.budget_bytes"] == 16 * MIB, stats
            assert together == 2 and stats["device_bytes.peak"] <= 16 * MIB and stats["out.bytes"] > 0, (
                together,
                stats,
            )


def check_the_environment() -> None:
    look = "import json, tensorflow as tf; x = tf.ones(1 << 20) + 1; print(json.dumps(tf.lms.stats('cpu')))"
    with directory() as folder:
        meet = {"LMS_SHARE": str(Path(folder, "meet")), "TF_LMS_ENABLED": "1", "TF_LMS_LIMIT": "64MiB"}
        for terms in ("1", "job42", "job42,weight=2,minimum=8MiB,priority=-1"):
            stats = answer(start(look, TF_LMS_SHARE=terms, **meet))
            assert stats["share.budget_bytes"] == 64 * MIB and stats["share.processes"] == 1, stats
        assert answer(start(look, TF_LMS_SHARE="0", **meet))["share.budget_bytes"] == 0
        for terms, word in (
            ("job42,weight=0", "weight of 0"),
            ("job42,colour=red", "colour=red"),
            ("a b", "'a b' is no name"),
            ("job42,minimum=much", "much"),
        ):
            process = start("import tensorflow", TF_LMS_SHARE=terms, **meet)
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 1 and errors.splitlines()[-1].startswith("ValueError: TF_LMS_SHARE: "), errors
            assert word in errors.splitlines()[-1], errors


def check_wrong_terms() -> None:
    with raises(TypeError, "share", "int"):
        tf.lms.enable("cpu", limit="16MiB", share=1)
    with raises(ValueError, "weight of -1"):
        tf.lms.enable("cpu", limit="16MiB", share=tf.lms.Share("a", weight=-1))
    with directory() as folder:
        os.environ["LMS_SHARE"] = str(Path(folder, "no", "such"))
        with raises(OSError, "LMS_SHARE"):
            tf.lms.enable("cpu", limit="16MiB", share="a")
    assert not tf.lms.is_enabled("cpu")
