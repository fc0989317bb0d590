"""Rows of small wheels that pip finds in a folder, and a compiler that waits until a test lets it go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import synthetic
from lmsbuild.wheel.wheel import file_sha256
from synthetic import Member
from workshop import Workshop

RUNNING = int(synthetic.TARGET.python.split(".")[1])
PYTHONS = [f"3.{minor}" for minor in (RUNNING, 20, 21)]  # the second and the third are of the future
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64", "ppc64le": "linux-ppc64le"}[synthetic.TARGET.machine]
NAMES = [f"torch-v2.13.0-py{python}-{SUBDIR}-wheel" for python in PYTHONS]


@dataclass(frozen=True)
class RowShop:
    """A workshop whose catalogue knows a wheel for each of PYTHONS."""

    workshop: Workshop
    members: Mapping[str, Member]

    @property
    def folder(self) -> Path:
        return self.workshop.folder / "shop"

    @property
    def gate(self) -> Path:
        return self.workshop.folder / "gate"

    @property
    def marks(self) -> Path:
        return self.workshop.folder / "marks"

    @property
    def compiler(self) -> Path:
        return self.workshop.folder / "waiting-compiler"

    def fill(self) -> None:
        """Publishes the wheels, and makes the compiler."""
        self.folder.mkdir()
        wheels = {}
        for python in PYTHONS:
            name = _wheel(python)
            synthetic.write_wheel(self.folder / name, self.members)
            wheels[name] = file_sha256(self.folder / name)
        synthetic.write_sources(self.workshop.patches, wheels)
        self.marks.mkdir()
        # A mark is called after the process that compiles; in it is the one that started that, the tool.
        text = f'#!/bin/sh\necho $PPID > "{self.marks}/$$"\nwhile [ ! -e "{self.gate}" ]; do sleep 0.05; done\nexec g++ "$@"\n'
        self.compiler.write_text(text)
        self.compiler.chmod(0o755)

    def hide(self, python: str) -> Callable[[], object]:
        """Takes a wheel out of the registry; the function that is returned puts it back."""
        wheel = self.folder / _wheel(python)
        hidden = self.workshop.folder / "hidden.whl"
        wheel.rename(hidden)
        return lambda: hidden.rename(wheel)

    def words(self, *more: str | Path, kind: str = "wheel") -> list[str | Path]:
        return ["build-all", "--kind", kind, "--output", self.workshop.output, *more]

    def report(self) -> dict[str, dict[str, Any]]:
        listed = json.loads((self.workshop.output / "build-all/report.json").read_text())["rows"]
        return {row["name"]: row for row in listed}

    def states(self) -> list[str]:
        return [row["state"] for row in self.report().values()]

    def log(self, name: str) -> str:
        return (self.workshop.output / "build-all" / f"{name}.log").read_text()

    def wait_for_tools(self, count: int) -> set[int]:
        """Waits until that many tools have started a compiler, and returns them."""

        def tools() -> set[int] | None:
            found = {int(text) for mark in self.marks.iterdir() if (text := mark.read_text())}
            return found if len(found) == count else None

        return set(wait_for(tools))


def _wheel(python: str) -> str:
    return synthetic.wheel_name(abi="cp" + python.replace(".", ""))


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What the condition returns, as soon as that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


def runs(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def leftovers(output: Path) -> list[str]:
    return [path.name for path in output.iterdir() if path.name.startswith(".lmsbuild-")]
