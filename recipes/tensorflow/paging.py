"""Run in the package's own environment when it is built: training in a third of the memory gives the same numbers."""

from __future__ import annotations

import tensorflow as tf

_MIN_SIZE = 1 << 14  # bytes
_UNLIMITED = 1 << 50
_WIDTH = 256
_RATE = 0.01


def train() -> list[str]:
    layers = [tf.Variable(tf.random.stateless_normal([_WIDTH, _WIDTH], [0, layer]) / 16.0) for layer in range(8)]
    losses = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            value = tf.ones([64, _WIDTH])
            for layer in layers:
                value = tf.tanh(tf.matmul(value, layer))
            loss = tf.reduce_mean(tf.square(value))
        for index, gradient in enumerate(tape.gradient(loss, layers)):
            layers[index].assign_sub(_RATE * gradient)
        losses.append(float(loss.numpy()).hex())
    return losses


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tf.device("CPU:0"):
        stock = train()
        tf.lms.enable("cpu", limit=_UNLIMITED, min_size=_MIN_SIZE)
        train()
        limit = tf.lms.stats("cpu")["allocated_bytes.peak"] // 3
        tf.lms.disable("cpu")
        tf.lms.enable("cpu", limit=limit, min_size=_MIN_SIZE)
        limited = train()
        moved = tf.lms.stats("cpu")["out.bytes"]
        tf.lms.disable("cpu")
    if limited != stock:
        raise SystemExit(f"losses differ: {stock} without Large Model Support, {limited} with it")
    if not moved:
        raise SystemExit("nothing was paged out")
    print(f"{limit} bytes are enough: {moved} bytes paged out, losses equal to the bit")


if __name__ == "__main__":
    main()
