"""Ways to train with TensorFlow, by programs without Keras's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from train_support import pairs, same_as_on_cpu

if TYPE_CHECKING:
    from train_support import Results

WIDTH = 384  # of layers: a matrix is 576 KiB
BATCH = 448
MINOR = int(tf.__version__.split(".")[1])
v1 = tf.compat.v1


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def initial(count: int) -> list[np.ndarray]:
    return [numbers(seed, WIDTH, WIDTH) / 20 for seed in range(count)]


def on_host(value: Any) -> np.ndarray:
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)  # which variables of 2.2 cannot do


def named(losses: list[Any], **groups: list[Any]) -> Results:
    """Everything that a program computed, on the host."""
    results = [(f"loss {index}", on_host(loss)) for index, loss in enumerate(losses)]
    for name, group in groups.items():
        results += [(f"{name} {index}", on_host(value)) for index, value in enumerate(group)]
    return results


def on_device(work: Callable[[], Results]) -> Callable[[str], Callable[[], Results]]:
    """``work`` on the first device of a kind."""

    def make(kind: str) -> Callable[[], Results]:
        def program() -> Results:
            with tf.device(f"{kind}:0"):
                return work()

        return program

    return make


def check_function_with_a_loop() -> None:
    """The loop over steps is in the graph; numbers are drawn by a generator, by kernels with a state, and without."""

    def work() -> Results:
        tf.random.set_seed(3)
        weights = [tf.Variable(value) for value in initial(8)]
        moments = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        generator = tf.random.Generator.from_seed(5, alg="philox")
        last = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

        @tf.function
        def train(batch: Any, steps: Any) -> Any:
            losses = tf.TensorArray(tf.float32, steps)
            for step in tf.range(steps):
                with tf.GradientTape() as tape:
                    x = batch + generator.normal(batch.shape) * 0.1
                    for index, weight in enumerate(weights):
                        mask = tf.random.stateless_uniform(tf.shape(x), seed=[step, index]) < 0.9
                        x = tf.where(mask, tf.tanh(x @ weight), 0.0) + x * tf.random.uniform(x.shape)
                    loss = tf.reduce_mean(x * x)
                for index, gradient in enumerate(tape.gradient(loss, weights)):
                    moments[index].assign(moments[index] * 0.9 + gradient)
                    weights[index].assign_sub(moments[index] * 0.5)
                    last[index].assign(gradient)
                losses = losses.write(step, loss)
            return losses.stack()

        losses = train(tf.constant(numbers(9, BATCH, WIDTH)), tf.constant(3))
        return named(list(losses.numpy()), weights=weights, moments=moments, gradients=last)

    same_as_on_cpu(
        on_device(work),
        ("RngReadAndSkip", "StatelessRandomNormalV2", "RandomUniform", "StatelessRandomUniformV2", "SelectV2"),
    )


def check_eager_with_sparse_gradients() -> None:
    """Every operation on its own; of a table only some rows are updated, and a history is written in place."""

    def work() -> Results:
        table = tf.Variable(numbers(1, 2048, WIDTH))
        weights = [tf.Variable(value) for value in initial(4)]
        rows = tf.constant(np.random.default_rng(2).integers(0, 2048, BATCH))
        history = tf.zeros((2, BATCH, WIDTH))
        losses, gradients = [], []
        for step in range(2):
            with tf.GradientTape() as tape:
                x = tf.nn.embedding_lookup(table, rows)
                for weight in weights:
                    x = tf.nn.relu(x @ weight) + x
                loss = tf.reduce_mean(x * x)
            history = tf.raw_ops.InplaceAdd(x=history, i=[step], v=x[None])
            first, *others = tape.gradient(loss, [table, *weights])
            table.scatter_sub(tf.IndexedSlices(first.values, first.indices))
            for weight, gradient in pairs(weights, others):
                weight.assign_sub(gradient)
            losses.append(loss)
            gradients += [first.values, *others]
        return named(losses, gradients=gradients, weights=[table, *weights], history=[history])

    expected = ("ResourceGather", "ResourceScatterSub", "AssignSubVariableOp", "InplaceAdd")
    same_as_on_cpu(on_device(work), expected, seeds=4)


def check_shapes_that_depend_on_data() -> None:
    """What the host has to know before it can go on, and lists that are made at once."""

    def work() -> Results:
        weights = [tf.Variable(value) for value in initial(6)]
        order = tf.constant([3, 1, 2, 0])

        @tf.function
        def train(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                x = batch
                for weight in weights:
                    x = tf.tanh(x @ weight) + x
                    rows = tf.where(tf.reduce_sum(x, axis=1) > 0.0)[:, 0]
                    x += tf.scatter_nd(rows[:, None], tf.gather(x, rows) * 0.5, tf.shape(x, out_type=tf.int64))
                    parts = tf.TensorArray(tf.float32, 4, element_shape=(BATCH // 4, WIDTH))
                    parts = parts.scatter(order, tf.reshape(x, (4, BATCH // 4, WIDTH)))
                    x = tf.reshape(parts.gather([2, 0, 1, 3]), (BATCH, WIDTH)) + parts.concat()
                    half_full = tf.TensorArray(tf.float32, 2, element_shape=(BATCH, WIDTH)).write(0, x)
                    x = half_full.read(0) + half_full.read(1)  # what was never written is zeros
                loss = tf.reduce_mean(tf.boolean_mask(x, x > 0.1))
            gradients = tape.gradient(loss, weights)
            for weight, gradient in pairs(weights, gradients):
                weight.assign_sub(gradient)
            return loss, tf.size(rows), gradients

        losses, gradients = [], []
        for _ in range(2):
            loss, size, found = train(tf.constant(numbers(9, BATCH, WIDTH)))
            losses += [loss, size]
            gradients += found
        return named(losses, gradients=gradients, weights=weights)

    expected = (
        "Where",
        "TensorListScatterIntoExistingList",
        "TensorListGather",
        "TensorListConcatV2",
        "TensorListSplit",
        "ScatterNd",
    )
    same_as_on_cpu(on_device(work), expected)


def check_while_loop() -> None:
    """The gradient of a loop keeps what every round of it made, in lists."""

    def work() -> Results:
        weights = [tf.Variable(value) for value in initial(3)]

        @tf.function
        def train(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                steps = tf.TensorArray(tf.float32, 8, element_shape=batch.shape)

                def body(step: Any, state: Any, states: Any) -> Any:
                    for weight in weights:
                        state = tf.sigmoid(state @ weight) + state * 0.5
                    return step + 1, state, states.write(step, state)

                _, _, steps = tf.while_loop(lambda step, *_: step < 8, body, (0, batch, steps))
                loss = tf.reduce_mean(tf.square(steps.stack()))
            gradients = tape.gradient(loss, weights)
            for weight, gradient in pairs(weights, gradients):
                weight.assign_sub(gradient)
            return loss, gradients

        losses, gradients = [], []
        for _ in range(2):
            loss, found = train(tf.constant(numbers(9, BATCH, WIDTH)))
            losses.append(loss)
            gradients += found
        return named(losses, gradients=gradients, weights=weights)

    same_as_on_cpu(on_device(work), ("TensorListStack", "SigmoidGrad"))


def in_session(graph: Callable[[list[Any]], Any]) -> Callable[[str], Callable[[], Results]]:
    """Trains in a session; ``graph`` makes it of variables, and returns what is fed, and the loss."""

    def make(kind: str) -> Callable[[], Results]:
        def program() -> Results:
            with tf.Graph().as_default(), tf.device(f"{kind}:0"):
                weights = [
                    v1.get_variable(f"v{index}", initializer=value, use_resource=True)
                    for index, value in enumerate(initial(8))
                ]
                inputs, loss = graph(weights)
                optimizer = v1.train.AdamOptimizer(0.01)
                pairs = optimizer.compute_gradients(loss, weights)
                update = optimizer.apply_gradients(pairs)
                slots = [optimizer.get_slot(weight, name) for weight in weights for name in ("m", "v")]
                with v1.Session(config=config) as session:
                    session.run(v1.global_variables_initializer())
                    losses, gradients = [], []
                    for step in range(2):
                        feed = {inputs: numbers(20 + step, BATCH, WIDTH)}
                        found = session.run([update, loss, *(gradient for gradient, _ in pairs)], feed)
                        losses.append(found[1])
                        gradients += found[2:]
                    return named(losses, gradients=gradients, variables=session.run([*weights, *slots]))

        return program

    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    rewriting = config.graph_options.rewrite_options
    rewriting.layout_optimizer = rewriting.remapping = rewriting.OFF
    config.gpu_options.allow_growth = True
    return make


def check_session() -> None:
    """A graph of TensorFlow 1, with its optimizers, feeds and fetches."""

    def graph(weights: list[Any]) -> Any:
        inputs = x = v1.placeholder(tf.float32, (BATCH, WIDTH))
        for weight in weights:
            x = tf.nn.elu(x @ weight) + x
        return inputs, tf.reduce_mean(x * x)

    same_as_on_cpu(in_session(graph), ("ResourceApplyAdam", "EluGrad"))


def check_session_with_a_loop() -> None:
    """The loop of TensorFlow 1, whose gradient keeps tensors on stacks; what an object keeps stays on the device."""
    v1.disable_control_flow_v2()

    def graph(weights: list[Any]) -> Any:
        def body(step: Any, state: Any) -> Any:
            for weight in weights[:3]:
                state = tf.sigmoid(state @ weight) + state * 0.5
            return step + 1, state

        inputs = v1.placeholder(tf.float32, (BATCH, WIDTH))
        _, x = tf.while_loop(lambda step, _: step < 4, body, (0, inputs))
        for weight in weights:
            x = tf.nn.elu(x @ weight) + x
        return inputs, tf.reduce_mean(x * x)

    same_as_on_cpu(in_session(graph), ("ResourceApplyAdam", "SigmoidGrad"))


def mirrored(reduction: Callable[[], Any]) -> None:
    """Two replicas on two devices, whose gradients are summed by copies between them."""

    def make(kind: str) -> Callable[[], Results]:
        def program() -> Results:
            # Until 2.2 replicas cannot update variables without it.
            options = {"aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA} if MINOR < 3 else {}
            strategy = tf.distribute.MirroredStrategy([f"{kind}:0", f"{kind}:1"], cross_device_ops=reduction())
            with strategy.scope():
                weights = [tf.Variable(value, **options) for value in initial(6)]

            def replica(batch: Any) -> Any:
                context = tf.distribute.get_replica_context()
                with tf.GradientTape() as tape:
                    x = batch
                    for weight in weights:
                        x = tf.tanh(x @ weight) + x
                    loss = tf.reduce_mean(x * x)
                gradients = context.all_reduce("sum", tape.gradient(loss, weights))
                for weight, gradient in pairs(weights, gradients):
                    weight.assign_sub(gradient)
                return loss, gradients

            batches = strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(numbers(30 + context.replica_id_in_sync_group, BATCH, WIDTH))
            )
            step = tf.function(lambda: strategy.run(replica, (batches,)))
            losses, gradients = [], []
            for _ in range(2):
                loss, found = step()
                losses += strategy.experimental_local_results(loss)
                gradients += [part for value in found for part in strategy.experimental_local_results(value)]
            parts = [part for weight in weights for part in strategy.experimental_local_results(weight)]
            return named(losses, gradients=gradients, weights=parts)

        return program

    same_as_on_cpu(make, ("AddN", "TanhGrad"), gpus=2)


def check_mirrored_with_copies_in_both_directions() -> None:
    mirrored(tf.distribute.HierarchicalCopyAllReduce)


def check_mirrored_with_sums_on_one_device() -> None:
    mirrored(tf.distribute.ReductionToOneDevice)
