"""A folder in which the tool can run on stand-ins."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal as signals
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import synthetic
from lmsbuild.catalogue import catalogue
from lmsbuild.graft import graft
from lmsbuild.patch import generate
from lmsbuild.patch.patch import Patch, find_patch
from lmsbuild.wheel.wheel import WheelFile

DRIVE = Path(__file__).with_name("drive.py")


class Forks:
    """Runs drive.py in forks of a process that has imported the tool (drive_forks.py). Thread-safe."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [sys.executable, DRIVE.with_name("drive_forks.py")]
        self._process = subprocess.Popen(program, stdin=theirs)
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._requests.close()  # after which it ends itself
        self._process.wait()

    def run(
        self, words: Sequence[str], folder: Path, variables: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run with text for output."""
        mine, theirs = socket.socketpair()
        with mine, tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            request = {"words": words, "folder": str(folder), "variables": dict(variables)}
            files = [output.fileno(), errors.fileno(), theirs.fileno()]
            with theirs:
                socket.send_fds(self._requests, [json.dumps(request).encode()], files)
            mine.settimeout(timeout_s)
            with mine.makefile() as answer:
                process = int(answer.readline())
                try:
                    code = int(answer.readline())
                except TimeoutError:
                    os.kill(process, signals.SIGKILL)
                    raise subprocess.TimeoutExpired(words, timeout_s) from None
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(words, code, output.read(), errors.read())


def found_only_in(folder: Path) -> dict[str, str]:
    """The variables by which pip finds the wheels in a folder, and no others."""
    return {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


@functools.cache
def forks() -> Forks:
    return Forks()


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
        words = [str(self.patches), str(int(signal)), moment, *map(str, arguments)]
        variables = {**os.environ, "LMSBUILD_CACHE": str(self.cache), **(environment or {})}
        return forks().run(words, self.folder, variables, 120)

    def build(
        self, *, signal: int = 0, moment: str = "-", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs `lmsbuild pytorch v2.13.0` with the stand-in wheel."""
        words = ("pytorch", "v2.13.0", "--base-wheel", self.base, "--output", self.output)
        return self.run(*words, signal=signal, moment=moment, environment=environment)
