"""The largest batch with which each Keras model trains in a fixed amount of memory, without LMS and with it.

``python tests/bench/keras_batch.py [--limit MIB] [--min-size KIB] [MODEL...]`` with an interpreter that has the patched
TensorFlow. Without LMS TensorFlow's CPU device runs on its own pooling allocator (BFC) with that limit. With LMS it runs
on the same one, limited to an eighth of it, which has the small tensors, and managed tensors may occupy the rest,
strictly: both sides end with an out-of-memory error of their own, and no side ever has more. Every attempt is a process,
which takes three steps. Batches are doubled until one fails, then halved in between three times, so the result is exact
to an eighth.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import tool_models

OUT_OF_MEMORY = 3
MIB = 1 << 20


def attempt(name: str, batch: int, limit: int | None, min_size: int) -> None:
    """What an attempt's process does; `limit` in MiB of managed tensors, None without LMS; `min_size` in KiB."""
    keras_models = tool_models.load("keras_models")
    import tensorflow as tf

    if limit is not None:
        tf.lms.enable("cpu", limit=limit * MIB, min_size=min_size << 10, strict=True)
    try:
        trainer = keras_models.make(name, batch=batch)
        for _ in range(3):
            trainer.step()
    except tf.errors.ResourceExhaustedError as error:
        print(next(line for line in error.message.splitlines() if "OOM" in line or "LMS" in line))
        sys.exit(OUT_OF_MEMORY)
    if limit is not None:
        print(f"{tf.lms.stats('cpu')['allocated_bytes.peak'] / MIB:.0f}")


def trains(name: str, batch: int, limit: int, min_size: int | None) -> tuple[bool, str]:
    """Whether it does, and what the process said: the error, or with LMS the MiB that tensors needed."""
    pool = limit if min_size is None else limit // 8
    words = [sys.executable, __file__, name, "--attempt", str(batch)]
    words += ["--limit", str(limit - pool), "--min-size", str(min_size or 0)]
    # Not with oneDNN, some of whose kernels abort the process when there is no memory.
    variables = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(pool), "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    # By a signal it ends where TensorFlow does not look at what its own allocator answers (copies of folded constants).
    if done.returncode > 0 and done.returncode != OUT_OF_MEMORY:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 0, done.stdout.strip()


def largest(name: str, limit: int, min_size: int | None, most: int) -> tuple[int, str]:
    """The largest batch, and what its process said; without LMS if `min_size` is None."""
    works, fails, said = 0, 1, ""
    while fails <= most:
        well, text = trains(name, fails, limit, min_size)
        if not well:
            break
        works, fails, said = fails, 2 * fails, text
    for _ in range(3):
        middle = (works + fails) // 2
        if fails > most or middle == works:
            break
        well, text = trains(name, middle, limit, min_size)
        works, fails, said = (middle, fails, text) if well else (works, middle, said)
    return works, said


def main() -> None:
    parser = argparse.ArgumentParser(description="The largest batch in a fixed amount of memory.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(tool_models.KERAS)}; all by default")
    parser.add_argument(
        "--limit", type=int, default=128, metavar="MIB", help="all memory of tensors (default %(default)s)"
    )
    parser.add_argument(
        "--most", type=int, default=4096, metavar="N", help="no larger batch is tried (default %(default)s)"
    )
    parser.add_argument(
        "--min-size",
        type=int,
        default=64,
        metavar="KIB",
        help="the least size of a managed tensor (default %(default)s)",
    )
    parser.add_argument("--attempt", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.models) - set(tool_models.KERAS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.attempt:
        attempt(options.models[0], options.attempt, options.limit or None, options.min_size)
        return
    print(f"| model | stock, {options.limit} MiB | LMS, {options.limit} MiB | ratio | MiB that this batch needs |")
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    for name in options.models or tool_models.KERAS:
        stock, _ = largest(name, options.limit, None, options.most)
        managed, needed = largest(name, options.limit, options.min_size, options.most)
        ratio = f"{managed / stock:.1f}" if stock else "-"  # where stock trains no batch at all
        print(f"| {name} | {stock} | {managed} | {ratio} | {needed} |", flush=True)


if __name__ == "__main__":
    main()
