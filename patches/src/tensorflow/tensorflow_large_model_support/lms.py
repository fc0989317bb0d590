"""The classes: one is a callback of Keras and a hook of sessions at once, and by hand it is ``run()``."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.lms import _tuning

from . import devices, graphs, loading, log, parameters

if TYPE_CHECKING:
    Graph = tf.Graph

_seen: weakref.WeakSet[Graph] = weakref.WeakSet()  # graphs for which some object has been run


class _Names:
    """A property: a set of str, empty at first.

    :raises ValueError: it is set to something else.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> set[str]:
        return vars(instance).setdefault(self._name, set())

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = parameters.names(self._name, value)


class LMS(tf.keras.callbacks.Callback, tf.compat.v1.train.SessionRunHook):
    """Large Model Support for a program: ``fit(callbacks=[lms])``, ``train(hooks=[lms])``, or ``lms.run()``.

    Takes the arguments of TFLMS 2, all of which have defaults, or those of TFLMS 1, the first of which are the scopes of
    the optimizer. Distances are in operations that the program runs. -1 leaves a distance to the policy.

    :param swapout_threshold: tensors are paged out ahead of need only if their next use is at least so far away.
    :param swapin_ahead: tensors are brought in at least so early before they are used. 0 is as -1.
    :param sync_mode: 1, nothing is paged out before memory is short; 2, nothing is brought in before it is used; 3, both.
    :param optimizer_scopes: version 1: scopes, or regular expressions for them, of which the graph has to have one.
    :param lb, ub: version 1: the least and the most distance at which tensors are brought in before they are used.
    :param n_tensors: version 1: 0 disables LMS.
    :param excl_scopes, excl_types, incl_scopes, incl_types: version 1: as the properties for outputs.
    :param debug: more lines in the log; with ``debug_level=2`` the names that stay resident, too.
    :raises TypeError: an argument is unknown or missing.
    :raises ValueError: an argument has a wrong value, or is of the wrong type.

    Other parameters are checked, and have no effect; the log says so once, and docs/tensorflow.md lists them.

    Properties: sets of str, of scopes that names of operations begin with, and of types of operations.
    ``excl_output_by_scopes`` and ``excl_output_by_types`` keep what these operations make resident, and
    ``excl_input_by_scopes`` and ``excl_input_by_types`` what they use. Of ``incl_*``, if one is not empty, all else stays resident. What
    operations use is known of a graph, in graph mode. ``autotune_gpu_mem`` is the limit, in GiB, unless all of
    ``swapout_threshold``, ``swapin_ahead`` and ``swapin_groupby`` are given; TF_LMS_SIMULATOR_MEM_RATIO in the environment is the part of
    it, or of the device's memory, that counts. ``batch_size``, ``is_training`` and ``autotune_plot`` are kept, and have no effect.
    """

    excl_output_by_scopes = _Names()
    excl_output_by_types = _Names()
    excl_input_by_scopes = _Names()
    excl_input_by_types = _Names()
    incl_output_by_scopes = _Names()
    incl_output_by_types = _Names()
    incl_input_by_scopes = _Names()
    incl_input_by_types = _Names()

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__()
        self._parameters = parameters.bind(arguments, keywords)
        get = self._parameters.get
        self.excl_output_by_scopes, self.incl_output_by_scopes = get("excl_scopes"), get("incl_scopes")
        self.excl_output_by_types, self.incl_output_by_types = get("excl_types"), get("incl_types")
        self.batch_size: int | None = None
        self.is_training = True
        self.autotune_plot = False
        self._autotune_gpu_mem: float | None = None
        self._before: dict[str, devices.Paged] | None = None  # what was paged when the run that is under way began
        self._run_of_keras: str | None = None
        self._unchecked: Graph | None = None
        loading.accept_callbacks()

    @property
    def autotune_gpu_mem(self) -> float | None:
        """GiB, or None.

        :raises ValueError: it is set to something else.
        """
        return self._autotune_gpu_mem

    @autotune_gpu_mem.setter
    def autotune_gpu_mem(self, value: float | None) -> None:
        self._autotune_gpu_mem = parameters.size("autotune_gpu_mem", value)

    # ------------------------------------------------------------------------------------------ how it is called

    def run(self, graph: Graph | None = None, keras: bool = False) -> set[Any] | None:
        """Applies the parameters, and enables LMS. To be called before the graph is run; in eager mode, at any time.

        :param graph: whose operations the scopes and types are about; the default graph if there is none. It stays as it is.
        :param keras: has no effect.
        :returns: None; of version 1 the operations that were added, which are none, or None if LMS is off or was run for
            the graph before.
        :raises ValueError: the graph is none, or has no operation of a scope or type that was given.
        """
        graph = parameters.graph("graph", graph)
        ran = self._apply(_with_operations(self._parameters.get("graph") if graph is None else graph))
        if ran:
            atexit.register(self._report)
        return set() if ran and self._parameters.version == 1 else None

    def begin(self) -> None:
        """Is called for hooks: :meth:`run` for the graph of the session that is about to be made."""
        self._apply(_with_operations(None))

    def end(self, session: Any) -> None:
        self._report()

    def set_params(self, params: dict[str, Any] | None) -> None:
        super().set_params(params)
        self.batch_size = (params or {}).get("batch_size") or self.batch_size

    def set_model(self, model: Any) -> None:
        """Is called by Keras, in ``fit``, ``evaluate`` and ``predict``, and by ``load_model(path, callbacks=[lms])``."""
        super().set_model(model)
        if getattr(model, "jit_compile", False) is True:
            log.warn(
                "XLA compiles the model's step, so all that it needs is resident at once: model.compile(..., jit_compile=False)"
            )
        graph = _with_operations(None)
        if self._apply(graph, complete=False):
            self._unchecked = graph

    def on_train_begin(self, logs: Any = None) -> None:
        self._begin_of("train")

    def on_train_end(self, logs: Any = None) -> None:
        self._end_of("train")

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin_of("test")

    def on_test_end(self, logs: Any = None) -> None:
        self._end_of("test")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._begin_of("predict")

    def on_predict_end(self, logs: Any = None) -> None:
        self._end_of("predict")

    def _begin_of(self, run: str) -> None:
        if self._run_of_keras is not None:  # evaluation within training
            return
        self._run_of_keras = run
        if self._before is None:
            self._before = devices.paged()
        if self._unchecked is not None:
            make = getattr(self.model, "_make_train_function", None)  # of graph mode, where none is public
            if run == "train" and make is not None:
                make()  # the graph has all of its operations then
            self._check(self._unchecked)
            self._keep_resident(self._unchecked)
            self._unchecked = None

    def _end_of(self, run: str) -> None:
        if self._run_of_keras == run:
            self._run_of_keras = None
            self._report()

    # ------------------------------------------------------------------------------------------ what it does

    def _apply(self, graph: Graph | None, complete: bool = True) -> bool:
        """Whether it was applied: LMS is not off, and has not been run for the graph.

        :param graph: None in eager mode.
        :param complete: whether the graph has all of its operations.
        """
        if self._parameters.get("n_tensors") == 0:
            log.info("n_tensors is 0: LMS is off.")
            devices.disable()
            return False
        if graph is not None and graph in _seen:
            log.info("LMS has been run for this graph already, and does nothing more.")
            return False
        if graph is not None and complete:
            self._check(graph)
        for name, reason in self._parameters.without_effect.items():
            log.info_once(f"{name} has no effect: {reason}.")
        if self.autotune_plot:
            log.info_once("autotune_plot has no effect: tf.lms.trace_start records what there is to see.")
        self._limit()
        self._distances()
        self._keep_resident(graph)
        devices.enable()
        if graph is not None:
            _seen.add(graph)
        self._before = devices.paged()
        self._say()
        return True

    def _limit(self) -> None:
        if not self._parameters.auto():
            if self._autotune_gpu_mem is not None:
                log.info_once("autotune_gpu_mem has no effect: no parameter is left to auto-tuning.")
            return
        nbytes = devices.limit(self._autotune_gpu_mem)
        if nbytes is not None:
            devices.set_limit(nbytes)
            self._debug(f"limit: {devices.in_words(nbytes)}")

    def _distances(self) -> None:
        bounds = self._parameters.bounds()
        _tuning.set_distances(**bounds)
        self._debug(f"distances: {bounds}")

    def _check(self, graph: Graph) -> None:
        """:raises ValueError: the graph has no operation of a scope or type."""
        operations = graph.get_operations()
        version_1 = self._parameters.version == 1
        for way in ("excl", "incl"):
            for end in ("output", "input"):
                scopes, types = (f"{way}_{end}_by_{kind}" for kind in ("scopes", "types"))
                shown = (f"{way}_scopes", f"{way}_types") if version_1 else (scopes, types)
                graphs.check_scopes(shown[0], getattr(self, scopes), operations)
                graphs.check_types(shown[1], getattr(self, types), operations)
        if version_1:
            graphs.check_optimizer_scopes(self._parameters.get("optimizer_scopes"), operations)

    def _keep_resident(self, graph: Graph | None) -> None:
        names: set[str] = set()
        excluded, included = (
            (getattr(self, f"{way}_input_by_scopes"), getattr(self, f"{way}_input_by_types"))
            for way in ("excl", "incl")
        )
        if graph is not None:
            operations = graph.get_operations()
            names = graphs.producers(operations, *excluded) | graphs.other_producers(operations, *included)
        elif any((*excluded, *included)):
            log.info_once("excl_input_by_* and incl_input_by_* have no effect in eager mode: they need a graph.")
        rules = {
            "excl_scopes": self.excl_output_by_scopes,
            "excl_types": self.excl_output_by_types,
            "excl_names": names,
            "incl_scopes": self.incl_output_by_scopes,
            "incl_types": self.incl_output_by_types,
        }
        _tuning.keep_resident(**rules)
        shown = {name: sorted(value) for name, value in rules.items() if value and name != "excl_names"}
        self._debug(f"resident by rule: {shown}, and {len(names)} operations' outputs by name")
        self._debug(f"resident by name: {sorted(names)}", 2)

    # ------------------------------------------------------------------------------------------ what it says

    def _debug(self, sentence: str, level: int = 1) -> None:
        if self._parameters.get("debug") and self._parameters.get("debug_level") >= level:
            log.info(sentence, level)

    def _say(self) -> None:
        found = [f"{name} (limit: {devices.limit_in_words(name)})" for name in devices.enabled()]
        if not found:
            log.info("LMS has nothing to do yet: no device has it.")
            return
        words = {
            "out_least": "out ahead of need if the next use is at least {} operations away",
            "in_least": "in at least {} operations before use",
            "in_most": "in at most {} operations before use",
        }
        bounds = self._parameters.bounds()
        bounded = [sentence.format(bounds[name]) for name, sentence in words.items() if bounds.get(name)]
        if bounds.get("in_most") == 0:
            bounded.append("in when used")
        if not bounds.get("early_out", True):
            bounded.append("out when memory is short")
        log.info(f"LMS is on for {', '.join(found)}; {'; '.join(bounded) or 'no bounds'}.")

    def _report(self) -> None:
        """The closing line of a run, once."""
        if self._before is None:
            return
        found, self._before = devices.paged_since(self._before), None
        for name, of in found.items():
            log.info(
                f"Paged on {name}: {of.out} tensors out ({devices.in_words(of.out_bytes)}), {of.back} in ({devices.in_words(of.back_bytes)})."
            )
        if found and not any(map(any, found.values())) and self._parameters.all_auto():
            log.info("LMS is not necessary: everything fitted.")


class _OfVersion1(LMS):
    """What version 1's hook and callback have in common.

    :param scopes: ``optimizer_scopes``.
    """

    def __init__(self, scopes: Any, **keywords: Any) -> None:
        keywords.pop("graph", None)  # it is the session's, or Keras's
        super().__init__(scopes, **keywords)

    @property
    def lms_obj(self) -> LMS:
        """The object that does the work: this one."""
        return self


class LMSSessionRunHook(_OfVersion1):
    """Version 1's hook: ``train(hooks=[LMSSessionRunHook({"scope"}, ...)])``.

    :param optimizer_scopes: as of :class:`LMS`, whose other keywords of version 1 may follow. ``graph`` is ignored: it is
        the session's.
    """

    def __init__(self, optimizer_scopes: Any, **keywords: Any) -> None:
        super().__init__(parameters.some_names("optimizer_scopes", optimizer_scopes), **keywords)


class LMSKerasCallback(_OfVersion1):
    """Version 1's callback: ``fit(callbacks=[LMSKerasCallback(...)])``.

    :param optimizer_scopes_override: as ``optimizer_scopes`` of :class:`LMS`, whose other keywords of version 1 may follow;
        None: those that Keras makes, whatever they are called. ``graph`` is ignored: it is Keras's.
    """

    def __init__(self, optimizer_scopes_override: Any = None, **keywords: Any) -> None:
        if "optimizer_scopes" in keywords:
            raise TypeError("LMSKerasCallback has optimizer_scopes_override in place of optimizer_scopes")
        super().__init__(parameters.names("optimizer_scopes_override", optimizer_scopes_override) or {""}, **keywords)


def _with_operations(graph: Graph | None) -> Graph | None:
    """The graph, or the default one; None if it has no operations, as in eager mode."""
    found = tf.compat.v1.get_default_graph() if graph is None else graph
    return found if found.get_operations() else None
