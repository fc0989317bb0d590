"""The four Keras models, in a loop of our own: losses, gradients, and all variables after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from train_support import models, pairs, same_as_on_cpu

if TYPE_CHECKING:
    from train_support import Results

keras_models = models()
STEPS = 2
SCALE = 0.5


class Model:
    """A model of keras_models.py, which can begin anew."""

    def __init__(self, name: str) -> None:
        trainer = keras_models.make(name, scale=SCALE)
        self.model, self.optimizer = trainer.model, trainer.model.optimizer
        self.batch = tf.constant(trainer.inputs), tf.constant(trainer.labels)
        self.loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if hasattr(self.optimizer, "jit_compile"):
            self.optimizer.jit_compile = False  # Keras 2 has XLA compile the CPU's update where there is a GPU
        for layer in self.model.layers:
            if hasattr(layer, "use_cudnn"):
                layer.use_cudnn = False  # Keras 3 has cuDNN do an LSTM where there is a GPU
        if hasattr(type(self.optimizer), "build"):
            self.optimizer.build(self.model.trainable_variables)
        else:  # until 2.10 the first step makes its variables
            self.optimizer.apply_gradients([(tf.zeros_like(each), each) for each in self.model.trainable_variables])
        self.initial = [variable.numpy() for variable in self.variables()]
        self.step = tf.function(self.take_step)

    def variables(self) -> list[Any]:
        optimizer = self.optimizer.variables
        return [*self.model.variables, *(optimizer() if callable(optimizer) else optimizer)]

    def take_step(self, inputs: Any, labels: Any) -> Any:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss(labels, self.model(inputs, training=True))
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(pairs(gradients, variables))
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def train(self) -> Results:
        for variable, value in pairs(self.variables(), self.initial):
            variable.assign(value)
        results = []
        for number in range(STEPS):
            loss, gradients = self.step(*self.batch)
            results.append((f"loss {number}", loss.numpy()))
            results += [(f"gradient {number}.{index}", value.numpy()) for index, value in enumerate(gradients)]
        return results + [(f"variable {index}", value.numpy()) for index, value in enumerate(self.variables())]


def train(name: str, *operations: str) -> None:
    def make(kind: str) -> Callable[[], Results]:
        def program() -> Results:
            with tf.device(f"{kind}:0"):
                if not kept:
                    kept.append(Model(name))
                return kept[0].train()

        kept: list[Model] = []
        return program

    same_as_on_cpu(make, operations)


def check_convnet() -> None:
    train("convnet", "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "AssignAddVariableOp")


def check_transformer() -> None:
    train("transformer", "BatchMatMulV2", "Softmax", "UnsortedSegmentSum")


def check_lstm() -> None:
    train("lstm", "MatMul", "TensorListStack")


def check_unet3d() -> None:
    train("unet3d", "Conv3D", "Conv3DBackpropInputV2", "AvgPool3DGrad")
