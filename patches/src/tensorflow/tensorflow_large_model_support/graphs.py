"""The operations of a graph by scopes and types. A scope is what the names of its operations begin with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import tensorflow as tf

    Operations = list[tf.Operation]


def check_scopes(parameter: str, scopes: Iterable[str], operations: Operations) -> None:
    """:raises ValueError: some scope has none of the operations."""
    for scope in scopes:
        if not any(operation.name.startswith(scope) for operation in operations):
            raise ValueError(f"{parameter}: the graph has no operation whose name begins with {scope!r}")


def check_types(parameter: str, types: Iterable[str], operations: Operations) -> None:
    """:raises ValueError: none of the operations is of some type."""
    missing = set(types).difference(operation.type for operation in operations)
    if missing:
        raise ValueError(f"{parameter}: the graph has no operation of type {', '.join(map(repr, sorted(missing)))}")


def check_optimizer_scopes(scopes: Collection[str], operations: Operations) -> None:
    """Scopes that are the beginning of a name or a regular expression for it.

    :raises ValueError: no operation is in any of them.
    """
    try:
        patterns = [re.compile(scope) for scope in scopes]
    except re.error as error:
        raise ValueError(f"optimizer_scopes: {error} in one of {sorted(scopes)}") from None
    if not any(pattern.match(operation.name) for pattern in patterns for operation in operations):
        raise ValueError(f"optimizer_scopes: the graph has no operation in any of {sorted(scopes)}")


def _matching(scopes: Collection[str], types: Collection[str]) -> Callable[[tf.Operation], bool]:
    beginnings = tuple(scopes)
    return lambda operation: operation.name.startswith(beginnings) or operation.type in types


def _producers(consumers: Iterable[tf.Operation]) -> set[str]:
    return {tensor.op.name for consumer in consumers for tensor in consumer.inputs}


def producers(operations: Operations, scopes: Collection[str], types: Collection[str]) -> set[str]:
    """The names of the operations whose outputs go to operations of these scopes and types."""
    return _producers(filter(_matching(scopes, types), operations))


def other_producers(operations: Operations, scopes: Collection[str], types: Collection[str]) -> set[str]:
    """The names of those whose outputs go to other operations alone; none where no scope and no type is given."""
    if not scopes and not types:
        return set()
    return _producers(operations) - producers(operations, scopes, types)
