"""That the checks of training would notice: what the simulated GPU and the stand-ins refuse, and what goes wrong when
the order of copies is lost.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from checks_train_programs import BATCH, WIDTH, initial, named, numbers
from common import MIB, raises
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from train_support import enable, on_cpu, operators, pairs, prepare, same, simulator, stats

if TYPE_CHECKING:
    from train_support import Results

v1 = tf.compat.v1
ILLEGAL_ADDRESS = 700


def check_block_that_is_away_is_an_illegal_address() -> None:
    prepare()
    library, simulated = operators(), simulator()
    enable(16 * MIB)
    with tf.device("GPU:0"):
        tensor = tf.constant(numbers(1, 1024, 1024)) + 1.0
        library.remember_address(tensor=tensor)
        library.read_remembered_address()
        simulated.sim_drain()
        assert simulated.sim_device_error(0) == 0
        tf.lms.reclaim("gpu:0")
        assert stats()["away_bytes.current"] >= 4 * MIB, stats()
        tf.reduce_sum(tensor)  # announces the tensor, which comes back
        library.read_remembered_address()
        simulated.sim_drain()
        assert simulated.sim_device_error(0) == 0
        tf.lms.reclaim("gpu:0")
        library.read_remembered_address()
        simulated.sim_drain()
        assert simulated.sim_device_error(0) == ILLEGAL_ADDRESS


def check_operations_without_a_stand_in() -> None:
    prepare()
    operators()
    enable(16 * MIB)
    with tf.device("GPU:0"):
        tensor = tf.constant([1.0])
        with raises(tf.errors.UnimplementedError, "no stand-in for the operation NcclAllReduce"):
            tf.raw_ops.NcclAllReduce(input=tensor, reduction="sum", num_devices=1, shared_name="a")
        if hasattr(gen_xla_ops, "xla_optimization_barrier"):
            with raises(tf.errors.UnimplementedError, "operation XlaOptimizationBarrier", "XLA is not simulated"):
                gen_xla_ops.xla_optimization_barrier(input=[tensor])
        with tf.Graph().as_default(), tf.device("GPU:0"):
            update = v1.get_variable("old", initializer=[1.0], use_resource=False).assign([2.0])
            with v1.Session() as session, raises(tf.errors.UnimplementedError, "operation Assign", "no resource"):
                session.run(update)
    assert not simulator().sim_refused_kernels()


def work() -> Results:
    weights = [tf.Variable(value) for value in initial(8)]
    losses: list[Any] = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            x = tf.constant(numbers(9, BATCH, WIDTH))
            for weight in weights:
                x = tf.tanh(x @ weight) + x
            losses.append(tf.reduce_mean(x * x))
        for weight, gradient in pairs(weights, tape.gradient(losses[-1], weights)):
            weight.assign_sub(gradient)
    return named(losses, weights=weights)


def on_gpu(expected: Results, **options: int) -> int:
    """What a child ends with that has to compute the same on a GPU with these options of the simulation."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            prepare()
            operators()
            for name, value in options.items():
                assert simulator().sim_set(name.encode(), str(value).encode()) == 0
            enable(12 * MIB)
            with tf.device("GPU:0"):
                same(work(), expected)
            assert stats()["in.bytes"] > 0, stats()
            status = 0
        except (AssertionError, tf.errors.OpError) as error:
            print(f"{options}: {str(error)[:500]}")
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def check_lost_waits_are_noticed() -> None:
    expected = on_cpu(work)
    assert on_gpu(expected) == 0
    assert on_gpu(expected, drop_waits=1) != 0
