"""A machine's file, machines/NAME.toml: what simulator/clock.h says of it, for Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli

from predictions.replay import Link

MACHINES = Path(__file__).resolve().parent / "machines"
NAMES = tuple(sorted(path.stem for path in MACHINES.glob("*.toml")))
HANDLES = ("call.cuMemCreate", "call.cuMemMap", "call.cuMemSetAccess", "call.cuMemUnmap")  # the dear ones


@cache
def _content(name: str) -> dict[str, Any]:
    return tomli.loads(Machine(name).text)


@dataclass(frozen=True)
class Machine:
    name: str

    @property
    def text(self) -> str:
        return (MACHINES / f"{self.name}.toml").read_text()

    @property
    def device(self) -> str:
        return str(_content(self.name)["device"])

    def __getitem__(self, key: str) -> float:
        """A number of the file, by its dotted name."""
        table, _, name = key.partition(".")
        return float(_content(self.name)[table][name])

    @property
    def link(self) -> Link:
        return Link(self["link.in"], self["link.out"], self["link.latency"])

    def text_without(self, numbers: tuple[str, ...]) -> str:
        """The file without those lines."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith(numbers)) + "\n"
