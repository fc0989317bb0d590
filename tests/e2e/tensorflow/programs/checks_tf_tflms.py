"""Programs that are written for TFLMS 1 and 2: each way to call it, what each parameter does, what the log says.

Keras in graph mode and Estimators, which end with TensorFlow 2.15, are in checks_tf_estimator.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from common import MIB, directory, raises
from tf_support import data, in_child, limit_of_bfc, models, one_operation_at_a_time, same, stat, warnings_of_the_log

v1 = tf.compat.v1
config = tf.config.experimental
models().deterministic()
one_operation_at_a_time()
ONE_AT_A_TIME = v1.ConfigProto(inter_op_parallelism_threads=1)
BATCH = data(1, seed=5).reshape(-1, 256)


def package() -> Any:
    return importlib.import_module("tensorflow_large_model_support")


@contextmanager
def log() -> Iterator[list[str]]:
    """What LMS writes to the log meanwhile."""
    v1.logging.set_verbosity(v1.logging.INFO)
    found: list[str] = []
    with warnings_of_the_log() as lines:
        yield found
        found += [line for line in lines if "LMS" in line]


def one(lines: list[str], *words: str) -> str:
    """The line that has all of these words, of which there is one."""
    (line,) = (line for line in lines if all(word in line for word in words))
    return line


def something_was_paged(least: int = 4 * MIB) -> None:
    found = tf.lms.stats("cpu")
    assert found["out.bytes"] + found["clean_drop.bytes"] >= least and found["in.bytes"] > 0, found


@contextmanager
def tuning() -> Iterator[list[dict[str, Any]]]:
    """What the policy is told meanwhile: the distances, then what stays resident, and so on."""
    from tensorflow.python.lms import _tuning

    told: list[dict[str, Any]] = []
    stock = _tuning.set_distances, _tuning.keep_resident
    _tuning.set_distances = lambda **words: told.append(words)
    _tuning.keep_resident = lambda **words: told.append(words)
    try:
        yield told
    finally:
        _tuning.set_distances, _tuning.keep_resident = stock


# ------------------------------------------------------------------------------------------------ sessions


def network() -> tuple[Any, Any]:
    """The loss and the training operation of a graph that needs some 12 MiB at once."""
    batch = v1.placeholder(tf.float32, BATCH.shape, name="batch")
    with tf.name_scope("cnn"):
        weight = v1.get_variable("weight", initializer=data(0.25, seed=6).reshape(256, 256) / np.float32(16))
        x = batch
        for _ in range(8):
            x = tf.tanh(x @ weight) + x
    with tf.name_scope("dropout"):
        x = x * 0.5
    with tf.name_scope("loss"):
        loss = tf.reduce_mean(x * x)
    with tf.name_scope("adam_optimizer"):
        return loss, v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())


def in_session(prepare: Callable[[Any], None], hook: Any = None) -> list[np.ndarray]:
    """The losses of three steps in a session of a graph that was prepared, or with a hook."""
    with tf.Graph().as_default() as graph:
        loss, train = network()
        prepare(graph)
        with v1.train.MonitoredTrainingSession(config=ONE_AT_A_TIME, hooks=hook and [hook]) as session:
            return [session.run([loss, train], {"batch:0": BATCH})[0] for _ in range(3)]


def stock() -> list[np.ndarray]:
    return in_session(lambda graph: None)


def check_run_by_hand() -> None:
    expected = in_child(stock)
    config.set_lms_limit(4 * MIB)
    LMS = package().LMS
    v1_lms = LMS({"adam_optimizer"}, excl_scopes={"loss"}, lb=3, ub=100, fuse_swapins=True)
    ways: list[tuple[Any, Callable[[Any, Any], Any]]] = [
        (LMS(), lambda lms, graph: lms.run()),
        (LMS(swapout_threshold=50, swapin_ahead=3, swapin_groupby=2), lambda lms, graph: lms.run(graph)),
        (LMS(1, 0, 0, 3), lambda lms, graph: lms.run(graph=v1.get_default_graph())),
        (v1_lms, lambda lms, graph: lms.run(graph=graph)),
        (LMS(optimizer_scopes={"adam_.*"}), lambda lms, graph: lms.run(graph)),
    ]
    for lms, run in ways:
        lms.excl_output_by_scopes = {"loss", "dropout"}
        before, returned = stat("out.blocks"), []
        same(in_session(lambda graph: returned.append(run(lms, graph))), expected)  # noqa: B023  called here
        assert stat("out.blocks") > before and returned == [None if lms in [way[0] for way in ways[:3]] else set()]
    something_was_paged()


def check_hooks_of_sessions() -> None:
    expected = in_child(stock)
    config.set_lms_limit(4 * MIB)
    found = package()
    from tensorflow.contrib.lms import LMSHook

    assert LMSHook is found.LMSSessionRunHook and issubclass(LMSHook, v1.train.SessionRunHook)
    hooks = (
        found.LMS(swapout_threshold=1, swapin_ahead=0, swapin_groupby=0, sync_mode=0),
        found.LMSSessionRunHook({"adam_optimizer"}, lb=3, debug=True),
        LMSHook(optimizer_scopes={"adam_optimizer"}, graph="is ignored", n_tensors=3),
    )
    for hook in hooks:
        hook.batch_size = 256
        with log() as lines:
            same(in_session(lambda graph: None, hook), expected)
        assert one(lines, "LMS is on for cpu (limit: 4 MiB)").startswith("[LMS][0] ")
        words = one(lines, "[LMS][0] Paged on cpu:").split()
        assert int(words[words.index("out") - 2]) > 0 and int(words[words.index("in") - 1]) > 0, words
    assert hooks[1].lms_obj is not None
    something_was_paged()


def check_a_session_before_the_import() -> None:
    def work(prepare: Callable[[Any], None]) -> list[np.ndarray]:
        with tf.Graph().as_default() as graph:
            loss, train = network()
            with v1.Session(config=ONE_AT_A_TIME) as session:
                session.run(v1.global_variables_initializer())
                prepare(graph)
                return [session.run([loss, train], {"batch:0": BATCH})[0] for _ in range(3)]

    def prepare(graph: Any) -> None:
        from tensorflow.contrib.lms import LMS

        assert LMS({"cnn"}, lb=3).run(graph) == set()

    expected = in_child(lambda: work(lambda graph: None))
    limit_of_bfc(4)
    same(work(prepare), expected)
    something_was_paged()


def check_a_graph_is_run_once() -> None:
    config.set_lms_limit(4 * MIB)
    LMS = package().LMS
    with tf.Graph().as_default(), log() as lines, tuning() as told:
        network()
        assert LMS({"cnn"}).run(v1.get_default_graph()) == set()
        assert LMS({"cnn"}).run(v1.get_default_graph()) is None
        LMS(swapout_threshold=7).begin()
    assert len(told) == 2 and sum("already" in line for line in lines) == 2, (told, lines)


def check_eager_mode() -> None:
    def work() -> list[np.ndarray]:
        weight, losses = tf.Variable(data(0.25, seed=6).reshape(256, 256) / 16), []
        for _ in range(3):
            with tf.GradientTape() as tape:
                x = tf.constant(BATCH)
                for _ in range(8):
                    x = tf.tanh(x @ weight) + x
                loss = tf.reduce_mean(x * x)
            weight.assign_sub(tape.gradient(loss, weight) * 0.1)
            losses.append(loss.numpy())
        return losses

    expected = in_child(work)
    config.set_lms_limit(4 * MIB)
    lms = package().LMS()
    lms.excl_input_by_types = {"Tanh"}
    with log() as lines:
        assert lms.run() is None and lms.run() is None
        same(work(), expected)
    assert one(lines, "eager mode", "need a graph")
    something_was_paged()


# ------------------------------------------------------------------------------------------------ Keras


def model() -> Any:
    """Needs some 16 MiB at once."""
    found = tf.keras.Sequential([tf.keras.layers.Dense(512, activation="tanh") for _ in range(8)])
    found.build((None, 512))
    found.set_weights(
        [data(weight.size / MIB * 4, seed=1).reshape(weight.shape) / 32 for weight in found.get_weights()]
    )
    found.compile("sgd", "mse", jit_compile=False)
    return found


def fitted(*callbacks: Any) -> list[Any]:
    values = data(1).reshape(-1, 512)
    found = model()
    history = found.fit(values, values, batch_size=256, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return [history.history["loss"], *found.get_weights()]


def check_callbacks_of_keras() -> None:
    expected = in_child(fitted)
    config.set_lms_limit(4 * MIB)
    found = package()
    from tensorflow.contrib.lms import LMSKerasCallback

    assert LMSKerasCallback is found.LMSKerasCallback and issubclass(found.LMS, v1.train.SessionRunHook)
    callbacks = (
        found.LMS(swapout_threshold=1, swapin_groupby=0, swapin_ahead=0, sync_mode=0, serialization=[1, "3:5", "100:"]),
        found.LMSKerasCallback(n_tensors=10, lb=3, starting_op_names=["bn_conv1/cond/Switch"]),
        LMSKerasCallback({"training/SGD"}, graph="is ignored", swap_branches=True),
    )
    for lms in callbacks:
        assert isinstance(lms, tf.keras.callbacks.Callback)
        lms.batch_size = 1
        before = stat("out.blocks")
        with directory() as folder, log() as lines:
            saved = tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "model.h5"))
            text = tf.keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"))
            same(fitted(saved, text, lms), expected)
        assert stat("out.blocks") > before
        assert one(lines, "[LMS][0] LMS is on for cpu") and one(lines, "[LMS][0] Paged on cpu") and len(lines) >= 3
    something_was_paged()


def check_predict_and_evaluate() -> None:
    values = data(4).reshape(-1, 512)

    def work(before: Callable[[Any], None], *callbacks: Any) -> list[Any]:
        found = model()
        before(found)
        words = {"batch_size": 1024, "verbose": 0, "callbacks": list(callbacks)}
        return [found.predict(values, **words), found.evaluate(values, values, **words)]

    def run(_: Any) -> None:
        lms = package().LMS(swapout_threshold=40, swapin_ahead=3, swapin_groupby=2)
        lms.is_training = False
        lms.run(keras=True)

    expected = in_child(lambda: work(lambda found: None))
    config.set_lms_limit(4 * MIB)
    same(work(run), expected)
    something_was_paged(MIB)
    lms = package().LMS()
    lms.is_training = False
    with log() as lines:
        same(work(lambda found: None, lms), expected)
    assert sum("Paged on cpu" in line for line in lines) == 2, lines


def check_load_model() -> None:
    from tensorflow.keras.models import load_model

    LMS = package().LMS
    lms = LMS()
    assert load_model.__name__ == tf.keras.models.load_model.__name__ == "load_model"
    with directory() as folder:
        path, found = os.path.join(folder, "model.keras"), model()
        found.save(path)
        for load in (tf.keras.models.load_model, importlib.import_module("keras").models.load_model):
            loaded = load(path, callbacks=[lms])
            assert lms.model is loaded
            same(loaded.get_weights(), found.get_weights())
            same(load(path, compile=False).get_weights(), found.get_weights())
    with raises(TypeError, "unknown"):
        load("", unknown=1)


def check_a_name_that_was_imported_before() -> None:
    values = importlib.import_module("tensorflow.keras.models")
    globals()["load_before"] = values.load_model
    package().LMS()
    assert globals()["load_before"] is tf.keras.models.load_model


def check_the_import_is_cheap() -> None:
    before = set(sys.modules)
    found = package()
    importlib.import_module("tensorflow.contrib.lms")
    added = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert added == {"tensorflow_large_model_support", "tensorflow"}, added
    assert config.get_lms_enabled() and not tf.lms.is_enabled("cpu")
    assert set(found.__all__) <= set(dir(found))
    with raises(AttributeError, "LSM"):
        found.LSM  # noqa: B018  the attribute is asked for


# ------------------------------------------------------------------------------------------------ parameters


def check_distances() -> None:
    LMS = package().LMS
    names = ("out_least", "in_least", "in_most", "early_out")
    defaults = dict(zip(names, (0, 0, None, True), strict=True))
    cases: list[tuple[Any, dict[str, Any]]] = [
        (LMS(), {}),
        (LMS(swapout_threshold=1, swapin_ahead=0, swapin_groupby=0, sync_mode=0), {"out_least": 1}),
        (LMS(50, 2, 3), {"out_least": 50, "in_least": 3}),
        (LMS(50, 2, 3, 1), {"out_least": 50, "in_least": 3, "early_out": False}),
        (LMS(50, 2, 3, 2), {"out_least": 50, "in_most": 0}),
        (LMS(swapin_ahead=3, sync_mode=3), {"in_most": 0, "early_out": False}),
        (LMS({"a"}), {}),
        (LMS({"a"}, lb=3), {"in_least": 3}),
        (LMS({"a"}, lb=3, ub=20), {"in_least": 3, "in_most": 20}),
        (LMS({"a"}, ub=0), {"in_most": 0}),
        (LMS(["a"], lb=3, ub=2), {"in_least": 3, "in_most": 3}),
        (LMS(lb=2, optimizer_scopes={"a"}), {"in_least": 2}),
    ]
    for lms, expected in cases:
        with tuning() as told:
            lms.run()
        assert {**defaults, **told[0]} == {**defaults, **expected}, (told, expected)


def check_what_stays_resident() -> None:
    found = package()

    def rules(lms: Any, **properties: set[str]) -> dict[str, set[str]]:
        for name, value in properties.items():
            assert getattr(lms, name) == set()
            setattr(lms, name, value)
            assert getattr(lms, name) == value
        with tf.Graph().as_default(), tuning() as told:
            network()
            lms.run()
        return {name: value for name, value in told[1].items() if value}

    LMS = found.LMS
    assert rules(LMS()) == {}
    assert rules(LMS(), excl_output_by_scopes={"loss", "dropout"}) == {"excl_scopes": {"loss", "dropout"}}
    assert rules(LMS(), excl_output_by_types={"Tanh"}) == {"excl_types": {"Tanh"}}
    assert rules(LMS(), incl_output_by_scopes={"cnn/"}) == {"incl_scopes": {"cnn/"}}
    assert rules(LMS(), incl_output_by_types={"MatMul"}) == {"incl_types": {"MatMul"}}
    given = LMS({"adam"}, None, None, None, {"loss"}, {"cnn"}, {"Mul"}, {"Tanh"})
    expected = {"excl_scopes": {"loss"}, "incl_scopes": {"cnn"}, "excl_types": {"Mul"}, "incl_types": {"Tanh"}}
    assert rules(given) == expected
    assert rules(LMS(excl_scopes={"loss"}, incl_types={"Tanh"})) == {"excl_scopes": {"loss"}, "incl_types": {"Tanh"}}
    excluded = rules(LMS(), excl_input_by_types={"Tanh"})
    assert set(excluded) == {"excl_names"} and all(name.startswith("cnn/matmul") for name in excluded["excl_names"])
    assert len(excluded["excl_names"]) == 8, excluded
    by_scope = rules(LMS(), excl_input_by_scopes={"dropout"})["excl_names"]
    assert len([name for name in by_scope if name.startswith("cnn/add")]) == 1, by_scope
    others = rules(LMS(), incl_input_by_types={"Tanh"})["excl_names"]
    assert "batch" in others and not others & excluded["excl_names"], others
    both = rules(LMS(), incl_input_by_scopes={"dropout"}, excl_input_by_types={"Tanh"})["excl_names"]
    assert both >= excluded["excl_names"] and not by_scope <= both
    lms = LMS()
    lms.excl_output_by_types.add("Tanh")
    assert rules(lms) == {"excl_types": {"Tanh"}}


def check_what_stays_does_stay() -> None:
    expected = in_child(stock)
    config.set_lms_limit(4 * MIB)
    over = "over_limit_bytes.peak"
    for properties in ({}, {"incl_output_by_scopes": {"loss"}}, {"excl_output_by_types": {"Tanh", "AddV2"}}):
        lms = package().LMS()
        for name, value in properties.items():
            setattr(lms, name, value)
        same(in_session(lambda graph: None, lms), expected)
        assert (stat(over) >= 4 * MIB) == bool(properties), (properties, tf.lms.stats("cpu"))


def check_synchronous_copies() -> None:
    config.set_lms_limit(6 * MIB)

    def moved_early(lms: Any, most: int) -> list[int]:
        """What left and came back ahead of need in so many steps; ends when both have happened."""
        names = ("early_out.bytes", "prefetch.bytes")
        before = [stat(name) for name in names]
        with tf.Graph().as_default():
            train = network()[1]
            lms.run()
            with v1.Session(config=ONE_AT_A_TIME) as session:
                session.run(v1.global_variables_initializer())
                for _ in range(most):
                    session.run(train, {"batch:0": BATCH})
                    moved = [stat(name) - then for name, then in zip(names, before, strict=True)]
                    if all(moved):
                        break
        return moved

    LMS = package().LMS
    assert all(moved_early(LMS(), 400))
    out, back = moved_early(LMS(sync_mode=1), 30)
    assert out == 0
    out, back = moved_early(LMS(sync_mode=2), 30)
    assert back == 0
    assert moved_early(LMS(sync_mode=3), 30) == [0, 0]


def check_limits() -> None:
    found = package()
    gib = 1 << 30

    def limit(lms: Any, memory: float | None = None, ratio: str | None = None) -> int:
        config.set_lms_limit(8 * MIB)
        os.environ.pop("TF_LMS_SIMULATOR_MEM_RATIO", None)
        if ratio is not None:
            os.environ["TF_LMS_SIMULATOR_MEM_RATIO"] = ratio
        lms.autotune_gpu_mem = memory
        lms.run()
        return config.get_lms_limit()

    LMS = found.LMS
    with log() as lines:
        assert limit(LMS()) == limit(LMS(1, 0, 0), 2) == limit(LMS(1, -1, 0, 2), 2) == limit(LMS({"a"}), 2) == 8 * MIB
        assert limit(LMS(), 2) == limit(LMS(1, 0, -1), 2) == limit(LMS(-1, 0, 0, 3), 2) == 2 * gib
        assert limit(LMS(), 0.5) == gib // 2 and limit(LMS(), 2, "0.5") == gib
        assert limit(LMS(), None, "0.5") == 8 * MIB  # of what?
        os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPU_BFC_MEM_LIMIT_IN_MB="64")
        assert limit(LMS(), None, "0.25") == 16 * MIB and limit(LMS(1, 1, 1), None, "0.25") == 8 * MIB
    assert one(lines, "TF_LMS_SIMULATOR_MEM_RATIO has no effect") and one(lines, "autotune_gpu_mem has no effect")
    for ratio in ("a lot", "0", "1.5"):
        with raises(ValueError, "TF_LMS_SIMULATOR_MEM_RATIO", repr(ratio)):
            limit(LMS(), 1, ratio)


def check_off() -> None:
    config.set_lms_limit(4 * MIB)
    LMS = package().LMS
    assert tf.lms.is_enabled("cpu")
    returned: list[Any] = []
    with log() as lines:
        in_session(lambda graph: returned.append(LMS({"cnn"}, n_tensors=0).run(graph)))
    assert returned == [None] and not tf.lms.is_enabled("cpu") and not config.get_lms_enabled()
    assert one(lines, "[LMS][0] n_tensors is 0", "off") and stat("out.blocks") == 0
    LMS({"cnn"}).run()
    assert tf.lms.is_enabled("cpu")


def check_off_by_the_environment() -> None:
    os.environ["TF_LMS_ENABLED"] = "0"
    config.set_lms_limit(4 * MIB)
    with log() as lines:
        package().LMS().run()
    assert one(lines, "TF_LMS_ENABLED is 0") and not config.get_lms_enabled()


def check_it_is_not_necessary() -> None:
    config.set_lms_limit(512 * MIB)
    LMS = package().LMS
    for lms, said in ((LMS(), True), (LMS(swapout_threshold=3), False), (LMS({"cnn"}), False)):
        with log() as lines:
            in_session(lambda graph: None, lms)
        assert one(lines, "Paged on cpu: 0 tensors out")
        assert any("LMS is not necessary" in line for line in lines) == said, lines


def check_what_has_no_counterpart() -> None:
    LMS = package().LMS
    v2 = {"swapin_groupby": 0, "serialization": ["3:5"], "serialization_by_size": 0.5}
    devices = {"cpu_device": "/cpu:1", "gpu_device": "/gpu:1"}
    v1 = {"starting_scope": "a", "starting_op_names": {"a/b"}, "n_tensors": 9, "fuse_swapins": True}
    more = {"ctrld_strategy": "direct_order", "swap_branches": True, "branch_threshold": 3}
    with log() as lines:
        LMS().run()
        LMS({"a"}).run()
    assert not any("has no effect: " in line and line.startswith("[LMS]") for line in lines), lines
    with log() as lines:
        for _ in range(2):
            lms = LMS(**v2, **devices)
            lms.autotune_plot = True
            lms.run()
            LMS({"a"}, **v1, **more).run()
    for name in (*v2, *devices, *v1, *more, "autotune_plot"):
        assert one(lines, f"[LMS][0] {name} has no effect: ")


def check_debug() -> None:
    LMS = package().LMS
    config.set_lms_limit(4 * MIB)
    for words, levels in (({}, [0]), ({"debug": True}, [0, 1]), ({"debug": True, "debug_level": 2}, [0, 1, 2])):
        with tf.Graph().as_default(), log() as lines:
            network()
            lms = LMS(**words)
            lms.excl_input_by_types = {"Tanh"}
            lms.run()
        assert sorted({int(line[6]) for line in lines}) == levels, lines
        assert any("cnn/matmul" in line for line in lines) == (2 in levels)


def check_wrong_parameters() -> None:
    found = package()
    LMS = found.LMS
    lms = LMS()
    cases: list[tuple[type[Exception], str, Any]] = [
        *((ValueError, name, lambda name=name: LMS(**{name: 1.5})) for name in ("swapout_threshold", "swapin_groupby")),
        *((ValueError, name, lambda name=name: LMS(**{name: "1"})) for name in ("swapin_ahead", "sync_mode")),
        (ValueError, "swapout_threshold", lambda: LMS(swapout_threshold=0)),
        (ValueError, "sync_mode", lambda: LMS(sync_mode=4)),
        (ValueError, "serialization", lambda: LMS(serialization="3:5")),
        *((ValueError, "serialization", lambda each=each: LMS(serialization=[each])) for each in ("x:y", "", -1, True)),
        *(
            (ValueError, "serialization_by_size", lambda size=size: LMS(serialization_by_size=size))
            for size in ("1", -1, float("nan"))
        ),
        (ValueError, "debug_level", lambda: LMS(debug_level=None)),
        (ValueError, "swapout_threshold", lambda: LMS("training")),
        (ValueError, "optimizer_scopes", lambda: LMS(set())),
        (ValueError, "optimizer_scopes", lambda: found.LMSSessionRunHook(set())),
        (ValueError, "excl_scopes", lambda: LMS({"a"}, excl_scopes="loss")),
        (ValueError, "lb", lambda: LMS({"a"}, lb=-1)),
        (ValueError, "ub", lambda: LMS({"a"}, ub=2.5)),
        (ValueError, "n_tensors", lambda: LMS({"a"}, n_tensors="all")),
        (ValueError, "excl_output_by_scopes", lambda: setattr(lms, "excl_output_by_scopes", "loss")),
        (ValueError, "incl_input_by_types", lambda: setattr(lms, "incl_input_by_types", {1})),
        *(
            (ValueError, "excl_output_by_scopes", lambda name=name: setattr(lms, "excl_output_by_scopes", {name}))
            for name in ("a\nb", "\ud800")
        ),
        *(
            (ValueError, "autotune_gpu_mem", lambda size=size: setattr(lms, "autotune_gpu_mem", size))
            for size in (0, 1e-12, 1e300, float("inf"), float("nan"))
        ),
        (ValueError, "graph", lambda: lms.run(graph=5)),
        (ValueError, "graph", lambda: LMS({"a"}, graph=3)),
        (ValueError, "branch_threshold", lambda: LMS({"a"}, branch_threshold=-4)),
        (TypeError, "optimizer_scopes_override", lambda: found.LMSKerasCallback(optimizer_scopes={"adam"})),
        (TypeError, "optimizer_scopes", lambda: LMS(lb=3)),
        (TypeError, "swapin_ahead", lambda: LMS({"a"}, swapin_ahead=3)),
        (TypeError, "threshold", lambda: LMS(threshold=3)),
        (TypeError, "two values", lambda: LMS(3, swapout_threshold=3)),
        (TypeError, "arguments", lambda: LMS(*range(1, 20))),
    ]
    for kind, word, call in cases:
        with raises(kind, word):
            call()
    assert LMS(np.int64(3)) is not None


def check_what_a_graph_does_not_have() -> None:
    LMS = package().LMS
    names = [
        f"{way}_{end}_by_{kind}"
        for way in ("excl", "incl")
        for end in ("output", "input")
        for kind in ("scopes", "types")
    ]
    with tf.Graph().as_default() as graph, tuning() as told:
        network()
        for name in names:
            lms = LMS()
            setattr(lms, name, {"nothing"})
            for call in (lms.run, lms.begin):
                with raises(ValueError, name, "'nothing'"):
                    call()
        for name in ("excl_scopes", "incl_scopes", "excl_types", "incl_types"):
            with raises(ValueError, name, "'nothing'"):
                LMS({"cnn"}, **{name: {"nothing"}}).run(graph)
        for scopes in ({"nothing"}, {"("}):
            with raises(ValueError, "optimizer_scopes"):
                LMS(scopes).run(graph)
        assert told == []
        LMS({"cnn"}).run(graph)  # is as if nothing had been asked
        assert len(told) == 2
    with tf.Graph().as_default():
        LMS({"nothing"}).run()  # there is no operation at all


# ------------------------------------------------------------------------------------------------ the log


def check_too_late_for_a_gpu() -> None:
    def refuse(enabled: bool) -> None:
        raise RuntimeError("the GPU has its devices")

    config.set_lms_enabled, stock = refuse, config.set_lms_enabled
    try:
        with log() as lines:
            LMS = package().LMS
            LMS().run()
            LMS({"cnn"}, n_tensors=0).run()
    finally:
        config.set_lms_enabled = stock
    line = one(lines, "LMS stays disabled")
    assert "import this module before" in line and "TF_LMS_ENABLED=1" in line and "the GPU has its devices" in line
    assert one(lines, "LMS has nothing to do yet") and one(lines, "could not be disabled")


def check_the_last_line_of_a_program() -> None:
    program = (
        "import tensorflow as tf\n"
        "tf.config.experimental.set_lms_limit(4 << 20)\n"
        "tf.compat.v1.logging.set_verbosity('INFO')\n"
        "from tensorflow_large_model_support import LMS\n"
        "LMS().run()\n"
        "kept = [tf.random.stateless_normal((1 << 18,), (1, index)) for index in range(16)]\n"
        "print(len(kept))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "[LMS][0]" in line]
    assert len(lines) == 2 and "LMS is on" in lines[0] and "Paged on cpu: " in lines[1], done.stderr
    assert int(lines[1].partition("cpu: ")[2].split()[0]) > 4, lines


def check_xla_is_warned_of() -> None:
    lms = package().LMS()
    with log() as lines:
        for jit_compile in (None, False, "auto", True, True):
            lms.set_model(SimpleNamespace(jit_compile=jit_compile))
    assert one(lines, "jit_compile=False")
