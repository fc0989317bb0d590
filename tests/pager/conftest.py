"""Builds the pager's test programs, once per build flavour and source state."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGER = HERE.parents[1] / "patches" / "src" / "pager"

COMMON = ["-std=c++14", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{PAGER}", f"-I{HERE}"]
# GCC sees through Pager's own operator new and takes it for a mismatch, but only with the sanitizers' inlining.
SANITIZED = ["-O1", "-fno-omit-frame-pointer", "-Wno-mismatched-new-delete"]
FLAVOURS = {
    "plain": ["-O2"],
    "address": [*SANITIZED, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": [*SANITIZED, "-fsanitize=thread"],
}


KEPT_S = 3600


class BuildError(Exception):
    """The compiler's command and what it said."""


class Builder:
    """Compiles with at most two processes at once; results are kept by the hash of everything that went in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = ThreadPoolExecutor(max_workers=2)
        self.futures: dict[tuple[str, str], Future[Path]] = {}
        self.compiler = os.environ.get("CXX", "g++")

    def start(self, flavour: str, program: str) -> Future[Path]:
        key = (flavour, program)
        if key not in self.futures:
            self.futures[key] = self.pool.submit(self._program, flavour, program)
        return self.futures[key]

    def start_pager(self, flavour: str) -> Future[Path]:
        key = (flavour, "")
        if key not in self.futures:
            self.futures[key] = self.pool.submit(self._pager, flavour)
        return self.futures[key]

    def _pager(self, flavour: str) -> Path:
        inputs = sorted(path for path in PAGER.rglob("*") if path.suffix in (".cc", ".h"))
        return self._compile(flavour, "pager.o", f'#include "{PAGER / "all.cc"}"\n', inputs, ["-c"])

    def _program(self, flavour: str, program: str) -> Path:
        pager = self.futures[(flavour, "")].result()
        source = HERE / f"{program}.cc"
        inputs = [source, HERE / "check.h", *sorted(PAGER.rglob("*.h")), pager]
        return self._compile(flavour, program, f'#include "{source}"\n', inputs, [str(pager)])

    def _compile(self, flavour: str, name: str, text: str, inputs: list[Path], arguments: list[str]) -> Path:
        flags = [*COMMON, *FLAVOURS[flavour]]
        digest = hashlib.sha256(repr((self.compiler, flags, text, arguments)).encode())
        for path in inputs:
            digest.update(path.read_bytes())
        output = self.folder / f"{flavour}-{digest.hexdigest()[:24]}-{name}"
        if output.exists():
            return output
        main = output.with_name(f"{output.name}.{os.getpid()}.cc")
        main.write_text(text)
        unfinished = output.with_name(f"{output.name}.{os.getpid()}")
        command = [self.compiler, *flags, str(main), *arguments, "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        main.unlink()
        if done.returncode != 0:
            raise BuildError(f"{' '.join(command)}\n{done.stderr}")
        unfinished.rename(output)
        # What earlier sources gave; a run that began before this one may still use it for a while.
        for old in self.folder.glob(f"{flavour}-*-{name}"):
            if old.stat().st_mtime < time.time() - KEPT_S:
                old.unlink(missing_ok=True)
        return output


@pytest.fixture(scope="session")
def build(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Returns the path of a program in a flavour, built if need be."""
    cache = pytestconfig.cache
    folder = Path(cache.mkdir("pager")) if cache is not None else tmp_path_factory.mktemp("pager")
    builder = Builder(folder)
    compiler = shutil.which(builder.compiler)
    assert compiler is not None, f"{builder.compiler} is needed to build the pager"

    def program(flavour: str, name: str) -> Path:
        builder.start_pager(flavour)
        wanted = builder.start(flavour, name)
        # Compile ahead what later tests need, while this one runs.
        for other in FLAVOURS:
            builder.start_pager(other)
            builder.start(other, name)
        try:
            return wanted.result()
        except BuildError as error:
            pytest.fail(str(error), pytrace=False)

    return program
