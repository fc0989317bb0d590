"""Builds programs of the CMake project in patches/src/pager."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import kept
from flavours import PAGER


class BuildError(Exception):
    """What CMake or the compiler said."""


class Builds:
    """Builds with $CXX and at most two compilers at once, in folders that stay warm: one for each preset and compiler.

    Thread-safe; several processes may share the folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._futures: dict[tuple[str, str], Future[Path]] = {}
        self._configured: set[Path] = set()
        # Of the environment of the tests first: CMake and Ninja are among what they install.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        self._environment = {**os.environ, "PATH": path}

    def start(self, preset: str, target: str) -> Future[Path]:
        """Has the program built after those that were started before; its path, or a BuildError, comes later."""
        key = (preset, target)
        if key not in self._futures:
            self._futures[key] = self._pool.submit(self._build, preset, target)
        return self._futures[key]

    def start_all(self, items: Iterable[pytest.Item], module: ModuleType) -> None:
        """Has the programs that the module's selected tests name built in turn: in the parameters `flavour` and `program`."""
        for item in items:
            if isinstance(item, pytest.Function) and item.module is module and hasattr(item, "callspec"):
                self.start(item.callspec.params["flavour"], item.callspec.params["program"])

    def get(self, preset: str, target: str) -> Path:
        """The program's path, when it is built. Raises BuildError."""
        return self.start(preset, target).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def folder(self, preset: str) -> Path:
        """The folder that the preset is built in, configured. Raises BuildError."""
        place = hashlib.sha256(repr(os.environ.get("CXX")).encode()).hexdigest()[:8]
        build = self._folder / f"{preset}-{place}"
        build.mkdir(parents=True, exist_ok=True)
        with _locked(build):
            if build not in self._configured:
                # The folder may outlive the environment whose Ninja it was configured with.
                ninja = shutil.which("ninja", path=self._environment["PATH"])
                own = [f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
                own += [f"-DCMAKE_CXX_COMPILER_LAUNCHER={word}" for word in kept.launcher()]
                self.cmake("-S", PAGER, "-B", build, "--preset", preset, *own)
                self._configured.add(build)
        return build

    def cmake(self, *words: str | Path) -> None:
        """Runs CMake. Raises BuildError."""
        done = subprocess.run(
            ["cmake", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(f"cmake {shlex.join(map(str, words))}\n{done.stdout}")

    def _build(self, preset: str, target: str) -> Path:
        build = self.folder(preset)
        with _locked(build):
            self.cmake("--build", build, "--target", target, "--parallel", "2")
        return build / "bin" / target


@contextmanager
def _locked(build: Path) -> Iterator[None]:
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
