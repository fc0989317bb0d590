"""``load_model(path, callbacks=[lms])``, an argument that Keras had where it came with TFLMS.

Each callback is given the model that was loaded. Keras is asked to accept it wherever a module has the function by now:
programs say ``from tensorflow.keras.models import load_model`` before or after they import this package.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OURS = "_lms_accepts_callbacks"


def accept_callbacks() -> None:
    """Has every ``load_model`` of Keras that is imported by now accept ``callbacks``."""
    for stock in list(_functions()):
        if not hasattr(stock, _OURS):
            _rebind(stock, _accepting(stock))


def _functions() -> Iterator[Any]:
    yield tf.keras.models.load_model
    keras = sys.modules.get("keras")  # in old releases a package of its own
    function = getattr(getattr(keras, "models", None), "load_model", None)
    if function is not None:
        yield function


def _accepting(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def load_model(*arguments: Any, **keywords: Any) -> Any:
        callbacks = keywords.pop("callbacks", None)
        model = stock(*arguments, **keywords)
        for callback in callbacks or ():
            callback.set_model(model)
        return model

    setattr(load_model, _OURS, True)
    return load_model


def _rebind(stock: Any, replacement: Any) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name in [name for name, value in list(names.items()) if value is stock]:
            names[name] = replacement
