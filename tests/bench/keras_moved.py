"""Bytes that Keras training moves under a limit, and traces from which `lmsreplay` computes the least that is possible.

``python tests/bench/keras_moved.py FOLDER [MODEL...]`` with an interpreter that has the patched TensorFlow. For each
model, in a process of its own: records a trace of eight steps with nothing paged (``FOLDER/MODEL.trace``), then trains
under a half and a third of the trace's peak with either policy, and prints the means from the fourth step on: the
iteration policy has learned the step by then. One thread computes, so that operations run in the same order in every step.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import tool_models

MARKER_BYTES = 1021 * 4096  # what lmsreplay.trace knows the beginning of a step by
MIB = 1 << 20
STEPS = 8
FRACTIONS = {"50%": 1 / 2, "33%": 1 / 3}
SKIPPED = 3


def train(name: str, folder: Path) -> None:
    keras_models = tool_models.load("keras_models")
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras_models.deterministic()
    tf.lms.enable("cpu", limit=1 << 50)
    trainer = keras_models.make(name)
    trainer.step()  # builds the function and the optimizer's variables
    tf.lms.reset_peak_stats("cpu")
    tf.lms.trace_start("cpu", folder / f"{name}.trace")
    for _ in range(STEPS):
        tf.zeros([MARKER_BYTES], tf.uint8)
        trainer.step()
    tf.lms.trace_stop("cpu")
    peak = tf.lms.stats("cpu")["allocated_bytes.peak"]
    for label, fraction in FRACTIONS.items():
        for policy in ("lru", "iteration"):
            tf.lms.enable("cpu", limit=int(peak * fraction), policy=policy)
            tf.lms.reset_peak_stats("cpu")
            for _ in range(SKIPPED):
                trainer.step()
            before = tf.lms.stats("cpu")
            for _ in range(STEPS):
                trainer.step()
            after = tf.lms.stats("cpu")
            out, back = ((after[key] - before[key]) / STEPS / MIB for key in ("out.bytes", "in.bytes"))
            over = after["over_limit_bytes.peak"] / MIB
            departures = after["policy.departures"] - before["policy.departures"]
            limit = peak * fraction / MIB
            print(
                f"| {name} | {label} | {limit:.1f} | {policy} | {back:.1f} + {out:.1f} | {out + back:.1f} | {over:.1f} | {departures} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes moved under a limit; traces for lmsreplay.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(tool_models.KERAS)}; all by default")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.models) - set(tool_models.KERAS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.one:
        train(options.models[0], options.folder)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    print("| model | memory | limit MiB | policy | in + out | MiB/step | over the limit MiB | departures |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |", flush=True)
    for name in options.models or tool_models.KERAS:
        subprocess.run([sys.executable, __file__, str(options.folder), name, "--one"], check=True)


if __name__ == "__main__":
    main()
