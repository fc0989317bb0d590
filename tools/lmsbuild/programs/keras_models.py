"""Four small Keras training programs: a convnet, a transformer, an LSTM and a 3-D U-Net.

What `lmsbuild.programs.models` is for PyTorch: the end-to-end tests and the benchmarks train them. Each is many layers of
medium size, so that the largest single operation needs only a small part of the peak. Everything is seeded, data come
from NumPy, and operations are deterministic: two runs of one configuration give the same bits. They run with Keras 2 and
3, and with TensorFlow 2.1 and Python 3.7.

``python keras_models.py MODEL... [--steps N] [--fit] [--limit MIB]`` trains and prints every loss, exactly, and a hash of
all weights, so that runs can be compared: with LMS if there is a limit, else without.

What they need, in MiB, as `allocated_bytes.peak` of `tf.lms.stats` has it, and how long a step takes on one core of a small
virtual machine, with TensorFlow 2.14.1:

============ ====== ========
model          peak     step
============ ====== ========
convnet        91.6   0.13 s
transformer   105.4   0.13 s
lstm          106.2   0.13 s
unet3d         95.0   0.27 s
============ ====== ========
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: it logs about the processor's instructions

import numpy as np
import tensorflow as tf

MODELS = ("convnet", "transformer", "lstm", "unet3d")
keras = tf.keras
layers = keras.layers


Parts = Any  # a tuple: a model, its optimizer, and data, which are inputs and labels


class Trainer:
    """A compiled model and one fixed batch. Not thread-safe."""

    def __init__(self, model: Any, optimizer: Any, inputs: Any, labels: Any) -> None:
        self.model = model
        self.inputs, self.labels = inputs, labels  # NumPy arrays
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        options: dict[str, Any] = {}
        if "jit_compile" in inspect.signature(model.compile).parameters:
            options["jit_compile"] = False  # Keras 3 would have XLA compile the whole step into one operation
        model.compile(optimizer=optimizer, loss=self._loss, **options)
        self._tensors: Any = None
        self._step = tf.function(self._take_step)

    def _take_step(self, inputs: Any, labels: Any) -> Any:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss(labels, self.model(inputs, training=True))
        self.model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))  # noqa: B905  Python 3.7
        return loss

    def step(self) -> float:
        """Takes one optimiser step in a loop of our own; returns the loss before it, exactly."""
        if self._tensors is None:
            self._tensors = tf.constant(self.inputs), tf.constant(self.labels)
        return float(self._step(*self._tensors))

    def fit(self, steps: int) -> list[float]:
        """Takes `steps` optimiser steps in Keras's own loop; returns the losses."""
        history = self.model.fit(
            self.inputs, self.labels, batch_size=len(self.inputs), epochs=steps, shuffle=False, verbose=0
        )
        return list(history.history["loss"])

    def digest(self) -> str:
        """A hash of all weights and of the optimizer's variables: what two runs must agree on to the bit."""
        variables = self.model.optimizer.variables
        if callable(variables):  # before Keras 2.11 or so
            variables = variables()
        result = hashlib.sha256()
        for array in (*self.model.get_weights(), *(variable.numpy() for variable in variables)):
            result.update(np.ascontiguousarray(array).tobytes())
        return result.hexdigest()


def _residual(x: Any, channels: int) -> Any:
    """Two 3x3 convolutions with batch normalisation around a shortcut."""
    y = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
    y = layers.ReLU()(layers.BatchNormalization()(y))
    y = layers.Conv2D(channels, 3, padding="same", use_bias=False)(y)
    return layers.ReLU()(layers.add([x, layers.BatchNormalization()(y)]))


def _convnet(scale: float, batch: int, random: Any) -> Parts:
    width = max(8, int(16 * scale))
    images = keras.Input((64, 64, 3))
    x = layers.Conv2D(width, 3, padding="same")(images)
    for _ in range(7):
        x = _residual(x, width)
    x = layers.Conv2D(2 * width, 3, strides=2, padding="same")(x)
    for _ in range(7):
        x = _residual(x, 2 * width)
    logits = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    data = random.standard_normal((batch, 64, 64, 3)).astype("float32"), random.integers(0, 10, batch)
    return keras.Model(images, logits), keras.optimizers.SGD(1e-3, momentum=0.9), data


class _Attention(layers.Layer):  # type: ignore[name-defined]
    """Causal self-attention of several heads, in plain operations."""

    def __init__(self, width: int, heads: int, **options: Any) -> None:
        super().__init__(**options)
        self.width, self.heads = width, heads
        self.qkv = layers.Dense(3 * width)
        self.projection = layers.Dense(width)

    def build(self, shape: Any) -> None:
        self.qkv.build(shape)
        self.projection.build(shape)
        super().build(shape)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, x: Any) -> Any:
        length = x.shape[1]
        parts = tf.reshape(self.qkv(x), [-1, length, 3, self.heads, self.width // self.heads])
        q, k, v = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        later = tf.constant(np.triu(np.full((length, length), -1e9, "float32"), 1))
        scores = tf.matmul(q, k, transpose_b=True) * (self.width // self.heads) ** -0.5 + later
        y = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3])
        return self.projection(tf.reshape(y, [-1, length, self.width]))


def _transformer(scale: float, batch: int, random: Any) -> Parts:
    heads = max(1, int(6 * scale))
    width, length, vocabulary = 32 * heads, 128, 512
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(tokens)
    for _ in range(8):
        x = layers.add([x, _Attention(width, heads)(layers.LayerNormalization()(x))])
        y = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Dense(width)(y)])
    logits = layers.Dense(vocabulary, use_bias=False)(layers.LayerNormalization()(x))
    text = random.integers(0, vocabulary, (batch, length + 1)).astype("int32")
    return keras.Model(tokens, logits), keras.optimizers.Adam(1e-3), (text[:, :-1], text[:, 1:])


def _lstm(scale: float, batch: int, random: Any) -> Parts:
    width = max(8, int(128 * scale))
    sequences = keras.Input((32, 64))
    x = sequences
    for _ in range(3):
        x = layers.LSTM(width, return_sequences=True)(x)
    logits = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    data = random.standard_normal((batch, 32, 64)).astype("float32"), random.integers(0, 10, batch)
    return keras.Model(sequences, logits), keras.optimizers.Adam(1e-3), data


def _volume(x: Any, channels: int) -> Any:
    """Two 3x3x3 convolutions with batch normalisation."""
    for _ in range(2):
        x = layers.Conv3D(channels, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def _unet3d(scale: float, batch: int, random: Any) -> Parts:
    """Encoder and decoder over volumes; each level's activations are kept for the way back up."""
    width = 4 * max(1, int(2 * scale))
    volumes = keras.Input((16, 32, 32, 1))
    level0 = volumes
    for _ in range(5):
        level0 = _volume(level0, width)
    level1 = _volume(layers.AveragePooling3D(2)(level0), 2 * width)
    level2 = _volume(layers.AveragePooling3D(2)(level1), 4 * width)
    x = layers.Conv3DTranspose(2 * width, 2, strides=2)(level2)
    x = _volume(layers.concatenate([x, level1]), 2 * width)
    x = layers.concatenate([layers.Conv3DTranspose(width, 2, strides=2)(x), level0])
    for _ in range(5):
        x = _volume(x, width)
    logits = layers.Conv3D(3, 1)(x)
    data = random.standard_normal((batch, 16, 32, 32, 1)).astype("float32"), random.integers(0, 3, (batch, 16, 32, 32))
    return keras.Model(volumes, logits), keras.optimizers.SGD(1e-3, momentum=0.9), data


_MAKERS = {"convnet": (_convnet, 8), "transformer": (_transformer, 4), "lstm": (_lstm, 192), "unet3d": (_unet3d, 4)}


def make(name: str, seed: int = 0, scale: float = 1.0, batch: int | None = None) -> Trainer:
    """Builds a model with its optimizer and data.

    :param name: one of :data:`MODELS`.
    :param seed: of TensorFlow's, Keras's and NumPy's generators: weights and data follow from it.
    :param scale: multiplies the width of every layer; the peak grows about in proportion.
    :param batch: how many samples; None is the model's own choice, for which the table above was measured.
    :raises ValueError: ``name`` is not one of :data:`MODELS`.
    """
    if name not in _MAKERS:
        raise ValueError(f"name: {name!r} is not one of {', '.join(MODELS)}")
    maker, usual = _MAKERS[name]
    keras.backend.clear_session()
    getattr(keras.utils, "set_random_seed", tf.random.set_seed)(seed)
    model, optimizer, data = maker(scale, batch or usual, np.random.default_rng(seed))
    return Trainer(model, optimizer, *data)


def deterministic() -> None:
    """Has TensorFlow choose deterministic kernels, where it knows how to: from 2.8 on."""
    if hasattr(tf.config.experimental, "enable_op_determinism"):
        tf.config.experimental.enable_op_determinism()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, and print all losses and a hash of all weights.")
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--steps", type=int, default=4, help="of each model (default %(default)s)")
    parser.add_argument("--fit", action="store_true", help="in Keras's loop instead of one of our own")
    parser.add_argument("--limit", type=float, metavar="MIB", help="train with LMS and this limit")
    options = parser.parse_args()
    deterministic()
    if options.limit is not None:
        tf.lms.enable("cpu", limit=int(options.limit * 2**20))
    for name in options.models:
        trainer = make(name)
        losses = trainer.fit(options.steps) if options.fit else [trainer.step() for _ in range(options.steps)]
        print(name, *(float(loss).hex() for loss in losses), trainer.digest(), flush=True)


if __name__ == "__main__":
    main()
