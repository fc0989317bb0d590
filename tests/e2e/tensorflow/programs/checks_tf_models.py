"""Models and the ways to run them: the same bits with LMS as without, in a fraction of the memory that they need."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB, directory
from tf_support import (
    data,
    enable,
    in_child,
    limit_of_bfc,
    models,
    one_operation_at_a_time,
    pinned,
    same,
    same_as_stock,
    stat,
)

keras_models = models()
keras_models.deterministic()
one_operation_at_a_time()
ONE_AT_A_TIME = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)  # the same for sessions and servers

# MiB that the models need at least, in every step; keras_models.py has a table.
NEEDED = {"convnet": 88, "transformer": 96, "lstm": 80, "unet3d": 92}
OVERSUBSCRIBED = (2, 4, 8)
LARGEST = {"lstm": 16}  # MiB that single operations need, where that is more than an eighth: they stack lists
# MiB with which they fail without LMS. Each operation that fails waits for 10 s; with these few of them do.
FAILS_AT = {"convnet": 44, "transformer": 48, "lstm": 30, "unet3d": 46}


def trained_the_same(name: str, fit: bool) -> None:
    def train(before: Callable[[int], None], after: Callable[[int], None]) -> tuple[list[float], str]:
        trainer = keras_models.make(name)
        losses = []
        for ratio in OVERSUBSCRIBED:
            before(NEEDED[name] * MIB // ratio)
            losses += trainer.fit(2) if fit else [trainer.step() for _ in range(2)]
            after(ratio)
        return losses, trainer.digest()

    def limit(nbytes: int) -> None:
        tf.config.experimental.set_lms_limit(nbytes)
        tf.lms.reset_peak_stats("cpu")
        moved.append(stat("out.bytes") + stat("clean_drop.bytes"))

    def look(ratio: int) -> None:
        found = tf.lms.stats("cpu")
        assert found["allocated_bytes.peak"] >= ratio * found["limit_bytes"], found
        assert found["out.bytes"] + found["clean_drop.bytes"] > moved[-1], found
        # On some processors a kernel's own memory passes the limit, and is counted.
        most = max(found["limit_bytes"], LARGEST.get(name, 0) * MIB) + found["over_limit_bytes.peak"]
        assert found["device_bytes.peak"] <= most, found

    moved: list[int] = []
    mib = NEEDED[name] // OVERSUBSCRIBED[0]
    with start_without_lms(name, fit, FAILS_AT[name]) as stock:
        expected = in_child(lambda: train(lambda nbytes: None, lambda ratio: None))
        limit_of_bfc(mib)
        tf.config.experimental.set_lms_enabled(True)
        assert tf.lms.limit("cpu") == mib * MIB
        same(train(limit, look), expected)
        assert stat("faults") == 0 and pinned() == 0, tf.lms.stats("cpu")
        _, text = stock.communicate()
    assert stock.returncode == 1 and "ResourceExhaustedError" in text and "OOM when allocating" in text, text


def start_without_lms(name: str, fit: bool, mib: int) -> subprocess.Popen[str]:
    """Without oneDNN, some kernels of which end the process with "Check failed" instead of TensorFlow's error."""
    words = [sys.executable, keras_models.__file__, name, "--steps", "2", *(["--fit"] if fit else [])]
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
    environment.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPU_BFC_MEM_LIMIT_IN_MB=str(mib))
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def check_convnet_in_fit() -> None:
    trained_the_same("convnet", fit=True)


def check_callback() -> None:
    batches = []

    class Recorder(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            batches.append({name: value for name, value in logs.items() if name.startswith("lms/")})

    tf.random.set_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(512) for _ in range(8)])
    model.compile("sgd", "mse")
    enable(4 * MIB)
    with directory() as folder:
        file = os.path.join(folder, "log.csv")
        callbacks = [tf.lms.callbacks.LmsCallback(), Recorder(), tf.keras.callbacks.CSVLogger(file)]
        values = data(1).reshape(-1, 512)[:48]
        history = model.fit(values, values, batch_size=16, epochs=2, callbacks=callbacks, verbose=0).history
        with open(file) as text:
            head, *lines = (line.strip().split(",") for line in text)
    assert len(batches) == 6 and all(batch["lms/cpu/out.bytes"] > 0 for batch in batches), batches
    for name in ("lms/cpu/out.bytes", "lms/cpu/in.bytes", "lms/cpu/stall_ns"):
        sums = [sum(batch[name] for batch in batches[3 * epoch :][:3]) for epoch in range(2)]
        assert history[name] == sums == [int(line[head.index(name)]) for line in lines], (name, sums, history)
    peaks = [max(batch["lms/cpu/resident_bytes.peak"] for batch in batches[3 * epoch :][:3]) for epoch in range(2)]
    over = history["lms/cpu/over_limit_bytes.peak"]
    assert history["lms/cpu/resident_bytes.peak"] == peaks and 0 < max(peaks) <= 4 * MIB + max(over), (peaks, history)


def check_transformer_in_a_loop() -> None:
    trained_the_same("transformer", fit=False)


def check_lstm_in_fit() -> None:
    trained_the_same("lstm", fit=True)  # TensorLists


def check_unet3d_in_a_loop() -> None:
    trained_the_same("unet3d", fit=False)


def layers(count: int = 6, width: int = 256) -> list[tf.Variable]:
    random = np.random.default_rng(1)
    return [tf.Variable(random.standard_normal((width, width)).astype("float32") / 16) for _ in range(count)]


BATCH = data(1, seed=5).reshape(-1, 256)


def step(weights: list[tf.Variable], batch: Any) -> Any:
    with tf.GradientTape() as tape:
        x = batch
        for weight in weights:
            x = tf.tanh(x @ weight) + x
        loss = tf.reduce_mean(x * x)
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(gradient * 0.1)
    return loss


def trained(run: Any) -> list[np.ndarray]:
    weights = layers()
    losses = [run(weights, tf.constant(BATCH)).numpy() for _ in range(3)]
    return losses + [weight.numpy() for weight in weights]


def check_eager() -> None:
    same_as_stock(lambda: trained(step), limit=7 * MIB)


def check_function() -> None:
    def work() -> list[np.ndarray]:
        weights = layers()
        run = tf.function(lambda batch: step(weights, batch))
        losses = [run(tf.constant(BATCH)).numpy() for _ in range(3)]
        return losses + [weight.numpy() for weight in weights]

    same_as_stock(work, limit=5 * MIB)


def check_compiled_by_xla() -> None:
    # Inside of a cluster nothing is paged: what goes in and what comes out is.
    def work() -> list[np.ndarray]:
        run = tf.function(lambda value: tf.tanh(value * 2.0) + value, jit_compile=True)
        values = [tf.constant(data(1, seed=index)) + 1.0 for index in range(8)]
        for _ in range(2):
            values = [run(value) for value in values]
        return [value.numpy() for value in values]

    same_as_stock(work, limit=4 * MIB)


def check_training_step_compiled_by_xla() -> None:
    """In a graph XLA's kernel has the name of a call. oneDNN's matrix product, which it uses, has data in the stack pointer:
    a fault there overwrites the heap, so that what a cluster is given has to be there before it runs."""

    def work() -> list[np.ndarray]:
        weight = tf.Variable(tf.constant(data(4, seed=1).reshape(1024, 1024)) / 64)
        bias, batch = tf.Variable(tf.zeros([1024])), tf.constant(data(4, seed=2).reshape(1024, 1024)[:64])
        others = [tf.Variable(tf.constant(data(4, seed=index)) + 1.0) for index in range(6)]

        @tf.function(jit_compile=True)
        def train(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weight + bias - x))
            for variable, gradient in zip((weight, bias), tape.gradient(loss, [weight, bias]), strict=True):
                variable.assign_sub(gradient)
            return loss

        run = tf.function(lambda x: train(x))
        losses = []
        for _ in range(4):
            for other in others:
                other.assign_add(other * 0.5)  # the weight leaves
            losses.append(run(batch).numpy())
        return [*losses, weight.numpy(), bias.numpy()]

    same_as_stock(work, limit=16 * MIB)


def check_session() -> None:
    def work() -> list[np.ndarray]:
        with tf.Graph().as_default(), tf.compat.v1.Session(config=ONE_AT_A_TIME) as session:
            given = tf.compat.v1.placeholder(tf.float32, BATCH.shape)
            weights = [
                tf.compat.v1.get_variable(f"w{index}", initializer=weight, use_resource=index % 2 == 0)
                for index, weight in enumerate(np.split(data(6, seed=3).reshape(-1, 256) / 64, 24)[:6])
            ]
            x = given
            for weight in weights:
                x = tf.tanh(x @ weight) + x
            loss = tf.reduce_mean(x * x)
            train = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
            session.run(tf.compat.v1.global_variables_initializer())
            losses = [session.run([loss, train], {given: BATCH})[0] for _ in range(3)]
            # Not the variables themselves: what they keep, TensorFlow copies for Python without announcing it.
            return losses + [-array for array in session.run([-weight for weight in weights])]

    same_as_stock(work, limit=6 * MIB)


def check_data_pipeline() -> None:
    def work() -> list[np.ndarray]:
        rows = tf.data.Dataset.range(24).map(lambda index: tf.fill((MIB // 8,), tf.cast(index, tf.float32)))
        shuffled = rows.cache().shuffle(16, seed=3).map(lambda row: row * 2.0, num_parallel_calls=2)
        return [(batch + 1.0).numpy() for batch in shuffled.batch(4).prefetch(2).repeat(2)]

    # tf.data's threads copy rows into batches of their own outside of any operation, for as many as they work on.
    same_as_stock(work, limit=4 * MIB, within=False, foreseen=False)


def check_mirrored_strategy() -> None:
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def work() -> list[np.ndarray]:
        with strategy.scope():
            weights = layers(4)

        def replica(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                x = batch
                for weight in weights:
                    x = tf.tanh(x @ weight) + x
                loss = tf.reduce_mean(x * x)
            gradients = tape.gradient(loss, weights)
            context = tf.distribute.get_replica_context()
            for weight, gradient in zip(weights, context.all_reduce("SUM", gradients), strict=True):
                weight.assign_sub(gradient * 0.1)
            return loss

        @tf.function
        def both(parts: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(replica, args=(parts,)), axis=None)

        batches = strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices(np.concatenate([BATCH] * 4)).batch(2 * len(BATCH))
        )
        losses = [both(parts).numpy() for parts in batches]
        return losses + [weight.numpy() for weight in weights]

    same_as_stock(work, limit=8 * MIB)


def check_lists_of_tensors() -> None:
    @tf.function
    def write_and_read(count: Any) -> Any:
        array = tf.TensorArray(tf.float32, size=count, clear_after_read=False)
        for index in tf.range(count):
            array = array.write(index, tf.fill((MIB // 4,), tf.cast(index, tf.float32)))
        total = tf.zeros((MIB // 4,))
        for index in tf.range(count):
            total += array.read(index) * tf.cast(index + 1, tf.float32)
        return total, tf.reduce_sum(array.stack(), 0), array.concat()[:: MIB // 8]

    def lists() -> list[np.ndarray]:
        handle = tf.raw_ops.EmptyTensorList(element_shape=(MIB // 4,), max_num_elements=-1, element_dtype=tf.float32)
        for index in range(12):
            handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=tf.fill((MIB // 4,), float(index)))
        copy, popped = handle, []
        for _ in range(12):
            handle, top = tf.raw_ops.TensorListPopBack(
                input_handle=handle, element_shape=(MIB // 4,), element_dtype=tf.float32
            )
            popped.append(top.numpy())
        stacked = tf.raw_ops.TensorListStack(input_handle=copy, element_shape=(MIB // 4,), element_dtype=tf.float32)
        return [*popped, stacked.numpy()]

    same_as_stock(
        lambda: [[each.numpy() for each in write_and_read(tf.constant(16))], lists()], limit=6 * MIB, within=False
    )  # a stack of 16


TEXTS = np.array([f"text number {index}" for index in range(20000)], dtype=object)


def check_texts_stay() -> None:
    enable(limit=4 * MIB)
    joined = tf.strings.join([TEXTS, TEXTS], "-")
    nbytes = stat("allocated_bytes.current")
    assert nbytes > 64 << 10  # large enough to be paged, were it numbers
    numbers = [tf.fill((MIB // 4,), float(index)) for index in range(8)]
    tf.lms.reclaim("cpu")
    assert stat("resident_bytes.current") == nbytes and stat("away_bytes.current") == 8 * MIB, tf.lms.stats("cpu")
    same(joined.numpy(), np.array([f"{text}-{text}".encode() for text in TEXTS], dtype=object))
    same([float(each[0]) for each in numbers], [float(index) for index in range(8)])
    assert stat("faults") == 0


def check_texts_and_variants() -> None:

    def work() -> list[Any]:
        values = tf.constant(TEXTS)
        joined = tf.strings.join([values, values], "-")
        lengths = tf.strings.length(joined)
        ragged = tf.RaggedTensor.from_row_lengths(tf.range(200000), [20000] * 10) * 2
        rows = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(400000), (4, -1)))
        optional = tf.experimental.Optional.from_value(tf.constant(data()) + 1.0)
        inner = next(iter(tf.data.Dataset.from_tensors(rows))).reduce(
            0, lambda total, row: total + tf.reduce_sum(row % 7)
        )
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(values, tf.range(20000)), -1)
        filler = [tf.fill((MIB // 4,), float(index)) for index in range(8)]
        return [
            joined.numpy(),
            lengths.numpy(),
            ragged.flat_values.numpy(),
            optional.get_value().numpy(),
            inner.numpy(),
            table.lookup(values).numpy(),
            [each.numpy() for each in filler],
        ]

    same_as_stock(work, limit=4 * MIB)


def check_variables_and_checkpoints() -> None:
    enable(limit=4 * MIB)
    values = [data(1, seed=index) for index in range(10)]
    variables = [tf.Variable(tf.constant(value) + 0.0) for value in values]
    checkpoint = tf.train.Checkpoint(variables=variables)
    with directory() as folder:
        path = checkpoint.write(os.path.join(folder, "saved"))
        for variable in variables:
            variable.assign(variable * 0.0)
        checkpoint.read(path).assert_consumed()
    same([variable.numpy() for variable in variables], values)
    for variable in variables:
        variable.scatter_nd_update([[0], [1]], [1.0, 2.0])
    assert [float(variable[1]) for variable in variables] == [2.0] * 10
    assert stat("out.bytes") > 0 and pinned() == 0


def check_parallel_branches() -> None:
    @tf.function
    def branches(values: Any) -> Any:
        return tf.add_n([tf.nn.softmax(values * float(index)) * values for index in range(24)])

    tf.config.threading.set_inter_op_parallelism_threads(4)
    # The sum uses all of them.
    same_as_stock(lambda: branches(tf.constant(data(1, seed=2))).numpy(), limit=6 * MIB, within=False)


def check_workers_of_a_cluster() -> None:
    # What one worker sends to another is written to a socket by the system, which serves no faults.
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports]})
    servers = [tf.distribute.Server(cluster, "worker", index, config=ONE_AT_A_TIME) for index in range(2)]
    starts = [data(1, seed=index).reshape(512, 512) for index in range(8)]

    def work() -> list[np.ndarray]:
        with tf.Graph().as_default() as graph:
            given = tf.compat.v1.placeholder(tf.float32, (512, 512))
            with graph.device("/job:worker/task:1"):
                weights = [
                    tf.compat.v1.get_variable(f"w{index}", initializer=tf.zeros((512, 512)), use_resource=True)
                    for index in range(len(starts))
                ]
                begin = [weight.assign(given) for weight in weights]
            with graph.device("/job:worker/task:0"):
                x = given
                for weight in weights:
                    x = tf.tanh(x @ weight * 0.05)
                slopes = tf.gradients(tf.reduce_sum(x * x), weights)
                train = [weight.assign_sub(0.1 * slope) for weight, slope in zip(weights, slopes, strict=True)]
            with tf.compat.v1.Session(servers[0].target, graph=graph, config=ONE_AT_A_TIME) as session:
                for operation, start in zip(begin, starts, strict=True):
                    session.run(operation, {given: start})
                for _ in range(3):
                    session.run(train, {given: starts[0]})
                return session.run(weights)

    # Weights that were sent stay until they are assigned anew. Two workers run operations at the same time, so that now
    # and then one is not foreseen: see one_operation_at_a_time.
    same_as_stock(work, limit=8 * MIB, released=False, within=False, foreseen=False)
