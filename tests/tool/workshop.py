"""A folder in which the tool can run on stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import synthetic
from lmsbuild.catalogue import catalogue
from lmsbuild.graft import graft
from lmsbuild.patch import generate
from lmsbuild.patch.patch import Patch, find_patch
from lmsbuild.wheel.wheel import WheelFile

DRIVE = Path(__file__).with_name("drive.py")


@dataclass(frozen=True)
class Workshop:
    """A folder in which a build can run: a base wheel, generated patches, cache and output."""

    folder: Path
    base: Path
    patches: Path

    @property
    def output(self) -> Path:
        return self.folder / "dist"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def tag(self) -> catalogue.Tag:
        return catalogue.find_tag(self.patches, "v2.13.0")

    @property
    def patch(self) -> Patch:
        return find_patch(self.patches, self.tag)

    def generate(self) -> None:
        """Makes the patches from the sources as they are now."""
        with WheelFile(self.base) as wheel:
            originals = {name: wheel.read(name) for name in self.tag.blobs}
        generate.write(
            generate.series(self.patches, self.tag.framework) | generate.hook(self.patches, self.tag, originals)
        )

    def options(self, **changes: Path | None) -> graft.Options:
        values = {"output": self.output, "base_wheel": self.base, **changes}
        return graft.Options(tag=self.tag, target=synthetic.TARGET, patches=self.patches, cache=self.cache, **values)

    def run(
        self, *arguments: str | Path, signal: int = 0, moment: str = "-", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command line in a process of its own."""
        return subprocess.run(
            [sys.executable, DRIVE, self.patches, str(int(signal)), moment, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "LMSBUILD_CACHE": str(self.cache), **(environment or {})},
            timeout=120,
            check=False,
        )

    def build(
        self, *, signal: int = 0, moment: str = "-", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs `lmsbuild pytorch v2.13.0` with the stand-in wheel."""
        words = ("pytorch", "v2.13.0", "--base-wheel", self.base, "--output", self.output)
        return self.run(*words, signal=signal, moment=moment, environment=environment)
