"""What programs for TFLMS 1 and 2 tune, as tensorflow_large_model_support does it; and what the environment asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB
from tensorflow.python.lms import _tuning
from tf_support import data, enable, same, stat


def resident_in_a_run(**rules: Any) -> int:
    """The MiB that stay while an operation between two pages out what may leave: of a/square and b/exp, 1 MiB each."""
    _tuning.keep_resident(**rules)
    resident = []

    def look() -> np.int64:
        tf.lms.reclaim("cpu")
        resident.append(stat("resident_bytes.current") // MIB)
        return np.int64(0)

    with tf.Graph().as_default():
        given = tf.compat.v1.placeholder(tf.float32, [MIB // 4])
        first, second = tf.square(given, name="a/square"), tf.exp(given, name="b/exp")
        with tf.control_dependencies([first, second]):
            looked = tf.compat.v1.py_func(look, [], tf.int64)
        with tf.control_dependencies([looked]):
            total = first + second
        with tf.compat.v1.Session() as session:
            session.run(total, {given: data()})
    (found,) = resident
    return found


def check_outputs_that_stay() -> None:
    enable(64 * MIB)
    assert resident_in_a_run() == 0
    assert resident_in_a_run(excl_scopes=["a/"]) == 1
    assert resident_in_a_run(excl_scopes=["a/", "b/e"]) == 2
    assert resident_in_a_run(excl_names=["b/exp"]) == 1
    assert resident_in_a_run(excl_names=["b/"]) == 0
    assert resident_in_a_run(excl_types=["Square", "Exp"]) == 2
    assert resident_in_a_run(excl_types=["Sqrt"]) == 0
    assert resident_in_a_run(incl_scopes=["a/"]) == 1
    assert resident_in_a_run(incl_types=["Square", "Exp"]) == 0
    assert resident_in_a_run(incl_types=["Square"], excl_scopes=["a/"]) == 2
    assert resident_in_a_run(incl_types=["Sqrt"], incl_scopes=["b/"]) == 1
    assert resident_in_a_run() == 0


def trained() -> tuple[list[np.ndarray], dict[str, int]]:
    """The weights after training a model in half of its memory, and the statistics then."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(0)
    enable(12 * MIB)
    model = tf.keras.Sequential([tf.keras.layers.Dense(512, activation="relu") for _ in range(8)])
    model.add(tf.keras.layers.Dense(1))
    model.compile("adam", "mse", jit_compile=False)
    inputs = np.random.default_rng(0).standard_normal((64 * 24, 64)).astype("float32")
    model.fit(inputs, inputs[:, :1], batch_size=64, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), tf.lms.stats("cpu")


def check_bounds() -> None:
    weights, before = trained()
    assert before["prefetch.bytes"] > 0, before
    _tuning.set_distances(in_most=0, early_out=False)
    again, after = trained()
    for name in ("prefetch.bytes", "early_out.bytes"):
        assert after[name] == before[name], name
    assert after["in.bytes"] > before["in.bytes"]
    _tuning.set_distances(out_least=3, in_least=2, in_most=20)
    bounded, last = trained()
    assert last["prefetch.bytes"] > after["prefetch.bytes"]
    for others in (again, bounded):
        for mine, other in zip(weights, others, strict=True):
            same(mine, other)


def environment(**variables: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import tensorflow as tf\n"
        "print(tf.lms.is_enabled('cpu') and tf.lms.limit('cpu'), tf.config.experimental.get_lms_enabled())"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TF_LMS")}
    return subprocess.run(
        [sys.executable, "-c", program], env={**clean, **variables}, capture_output=True, text=True, check=False
    )


def check_what_the_environment_asks_for() -> None:
    assert environment(TF_LMS_LIMIT="8MiB", TF_LMS_ENABLED="1").stdout.split() == [str(8 * MIB), "True"]
    assert environment(TF_LMS_LIMIT=str(8 * MIB), TF_LMS_ENABLED="true").stdout.split() == [str(8 * MIB), "True"]
    automatic, enabled = environment(TF_LMS_LIMIT="auto", TF_LMS_ENABLED="1").stdout.split()
    assert int(automatic) > 64 * MIB and enabled == "True"
    assert environment(TF_LMS_LIMIT="8MiB").stdout.split() == ["False", "False"]
    assert environment(TF_LMS_ENABLED="0").stdout.split() == ["False", "False"]
    without = environment(TF_LMS_ENABLED="1", TF_CPP_MIN_LOG_LEVEL="1")
    assert without.stdout.split() == ["False", "True"] and "LMS was asked for, and has no effect" in without.stderr
    bfc = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "16"}
    assert environment(TF_LMS_ENABLED="1", **bfc).stdout.split() == [str(16 * MIB), "True"]
    for name, value in (("TF_LMS_ENABLED", "yes"), ("TF_LMS_LIMIT", "8 gigs"), ("TF_LMS_LIMIT", "50")):
        failed = environment(**{name: value})
        assert failed.returncode == 1 and failed.stderr.splitlines()[-1].startswith(f"ValueError: {name}: "), failed
