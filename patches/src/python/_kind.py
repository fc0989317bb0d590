"""What a kind of device says of itself: all that differs between devices. The rest of LMS treats them alike.

The kinds that a framework has are in the table ``KINDS`` of ``_devices``. Sizes are in bytes.
"""

from __future__ import annotations

import abc
from typing import NamedTuple


class Kind(abc.ABC):
    """What differs between kinds of devices."""

    name: str
    libraries: tuple[str, ...]  # the first of these that exists and has the kind's functions is used
    min_size: int  # the default
    has_default_limit = False  # whether the library knows what a limit of None stands for

    def in_this_build(self) -> bool:
        return True

    @abc.abstractmethod
    def index(self, requested: int | None) -> int:
        """The index of the device that is meant; None is what a device without an index says."""

    @abc.abstractmethod
    def count(self) -> int:
        """What every index of a device of the kind is below."""

    def label(self, index: int) -> str:
        return self.name

    def arguments(self, index: int) -> tuple[int, ...]:
        """What the kind's C functions take first."""
        return ()

    @abc.abstractmethod
    def prepare(self, index: int) -> None:
        """Makes the device ready for use, or raises."""

    @abc.abstractmethod
    def settle(self, index: int) -> None:
        """Enables LMS now where that was put off until the device is first used."""

    def capacity(self, index: int) -> int | None:
        """Bytes that the device has; None where a limit above that is no mistake."""
        return None

    @abc.abstractmethod
    def memory(self, index: int) -> int:
        """Bytes of the device's memory that the process may use, of which a limit may be a part."""


class Device(NamedTuple):
    """A device of some kind."""

    kind: Kind
    index: int

    def __str__(self) -> str:
        return self.kind.label(self.index)

    def memory(self) -> int:
        return self.kind.memory(self.index)
