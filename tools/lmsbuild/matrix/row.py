"""One thing that can be built."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("wheel", "conda")


@dataclass(frozen=True)
class Row:
    """One thing that can be built."""

    framework: str
    tag: str  # such as v2.13.0
    package: str  # whose wheel is patched, such as tensorflow-cpu
    python: str  # such as 3.12, or 3.13t for the free-threaded one
    platform: str  # as channels call it, such as linux-64
    kind: str  # one of KINDS

    @property
    def name(self) -> str:
        """Tells the row from all others; the same in every run, and fit for a file's name."""
        return f"{self.stem}-{self.kind}"

    @property
    def full_tag(self) -> str:
        """The tag, whatever tags other frameworks have."""
        return f"{self.framework}:{self.tag}"

    @property
    def stem(self) -> str:
        """What a wheel's name and that of its package have in common."""
        return f"{self.package}-{self.tag}-py{self.python}-{self.platform}"
