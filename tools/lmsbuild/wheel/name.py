"""The name of a wheel file, which says for what the wheel is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag as InterpreterTag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from lmsbuild.errors import DamagedWheel


@dataclass(frozen=True)
class WheelName:
    """What a wheel's file name says."""

    package: str
    version: Version
    tags: frozenset[InterpreterTag]

    @property
    def is_patched(self) -> bool:
        """Whether the local version label is one that the graft gives."""
        return re.search(r"(^|\.)lms\d+$", self.version.local or "") is not None

    @property
    def platforms(self) -> list[str]:
        return sorted({tag.platform for tag in self.tags})


def parse_name(path: Path) -> WheelName:
    """Raises DamagedWheel when the file's name is not a wheel's."""
    try:
        package, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise DamagedWheel(
            f"{path.name} is not the name of a wheel: keep the name under which it was published"
        ) from error
    return WheelName(package, version, tags)
