"""An interpreter with torch installed, and what machine it runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import process

from lmsbuild.errors import MissingProgram, NoFramework, ProgramFailed

_START = 300  # seconds: importing a framework from a cold disk takes long


@dataclass(frozen=True)
class Torch:
    """The torch that an interpreter imports."""

    python: Path
    version: str  # such as 2.11.0+cu130
    commit: str
    cuda: str  # the release of CUDA that it is built for, such as 13.0
    folder: Path  # the package
    new_strings: bool  # which of libstdc++'s two strings it is built with
    facts: dict[str, Any]  # all that programs/about.py says

    @property
    def release(self) -> str:
        """Upstream's tag of it, such as v2.11.0."""
        return "v" + re.split(r"[+]", self.version)[0]

    @property
    def device(self) -> dict[str, Any] | None:
        """The first device, or None."""
        found: dict[str, Any] | None = self.facts["device"]
        return found


def ask(python: Path, program: str, environment: Mapping[str, str], framework: str) -> dict[str, Any]:
    """What a program says of the interpreter's framework. Raises NoFramework when there is no interpreter, or no such."""
    try:
        return process.run([python, process.PROGRAMS / program], environment, _START)
    except MissingProgram:
        raise NoFramework(
            f"{python} is no interpreter that can be run: name one that has {framework} with --python"
        ) from None
    except ProgramFailed as error:
        raise NoFramework(
            f"{python} cannot import {framework}: install a CUDA wheel of it first\n    {error}"
        ) from None


def look(python: Path, environment: Mapping[str, str]) -> Torch:
    """Asks the interpreter for its torch. Raises NoFramework as above, and when that is not built for CUDA."""
    facts = ask(python, "about.py", environment, "torch")
    if not facts["cuda"]:
        raise NoFramework(f"torch {facts['version']} of {python} is not built for CUDA: install a CUDA wheel")
    return Torch(
        python,
        facts["version"],
        facts["commit"],
        facts["cuda"],
        Path(facts["folder"]),
        facts["new_strings"],
        facts,
    )


def machine(torch: Torch, driver: str | None) -> dict[str, Any]:
    """What a reader of results has to know of the machine; no names of hosts, users or folders."""
    return {
        **(torch.device or {}),
        "driver": driver,
        "torch": torch.version,
        "torch_commit": torch.commit,
        "cuda": torch.cuda,
        "python": torch.facts["python"],
        "cpus": torch.facts["cpus"],
        "host_memory_bytes": torch.facts["host_memory_bytes"],
    }
