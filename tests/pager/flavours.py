"""The flags of the presets of patches/src/pager/CMakePresets.json, for what CMake does not build."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

PAGER = Path(__file__).resolve().parents[2] / "patches" / "src" / "pager"
FLAVOURS = ("plain", "address", "thread")


def flags(preset: str) -> list[str]:
    """What CMAKE_CXX_FLAGS is in the preset."""
    presets = {row["name"]: row for row in json.loads((PAGER / "CMakePresets.json").read_text())["configurePresets"]}
    text = presets[preset]["cacheVariables"]["CMAKE_CXX_FLAGS"]
    name: str | None = preset
    while name is not None:
        for variable, value in presets[name].get("environment", {}).items():
            text = text.replace(f"$env{{{variable}}}", value)
        name = presets[name].get("inherits")
    return shlex.split(text)
