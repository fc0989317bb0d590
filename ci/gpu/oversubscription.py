"""The arithmetic of oversubscription: limits, and how much of the copying is hidden behind computing."""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 2 << 20  # bytes: the device's pages, which is what a limit is made of


def limit_for(peak: int, factor: float) -> int:
    """The limit in bytes at which a program that needs `peak` bytes is oversubscribed `factor` times: whole pages.

    Raises ValueError when no page is left.
    """
    if peak <= 0 or factor <= 0:
        raise ValueError(f"expected a positive peak and factor, got {peak} and {factor}")
    limit = int(peak / factor) // PAGE * PAGE
    if limit == 0:
        raise ValueError(f"{peak} bytes, {factor} times oversubscribed, leave less than a page of {PAGE}")
    return limit


@dataclass(frozen=True)
class Traffic:
    """What a step moves, in bytes, over a link whose speed each way is in bytes a second."""

    out_bytes: float
    in_bytes: float
    out_speed: float
    in_speed: float

    @property
    def serial_seconds(self) -> float:
        """How long the copies take one after the other."""
        return self.out_bytes / self.out_speed + self.in_bytes / self.in_speed

    @property
    def duplex_seconds(self) -> float:
        """How long they take when the link carries both ways at once: no schedule needs less."""
        return max(self.out_bytes / self.out_speed, self.in_bytes / self.in_speed)

    def hidden_share(self, added_seconds: float) -> float | None:
        """The share of the serial copy time that did not make the step longer: 1 is all of it, 0 none of it.

        Negative when the step grew by more than its copies take. None when nothing was copied.
        """
        if self.serial_seconds == 0:
            return None
        return 1 - added_seconds / self.serial_seconds
