"""Builds the pager's test programs, once per build flavour and source state."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGER = HERE.parents[1] / "patches" / "pager"

COMMON = ["-std=c++14", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{PAGER}", f"-I{HERE}"]
# GCC sees through Pager's own operator new and takes it for a mismatch, but only with the sanitizers' inlining.
SANITIZED = ["-O1", "-fno-omit-frame-pointer", "-Wno-mismatched-new-delete"]
FLAVOURS = {
    "plain": ["-O2"],
    "address": [*SANITIZED, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": [*SANITIZED, "-fsanitize=thread"],
}


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
        # One file that includes all the others, as the patched framework builds it.
        sources = sorted(PAGER.glob("*.cc"))
        text = "".join(f'#include "{source}"\n' for source in sources)
        inputs = [*sources, *sorted(PAGER.glob("*.h"))]
        return self._compile("pager.o", text, inputs, [*FLAVOURS[flavour], "-c"])

    def _program(self, flavour: str, program: str) -> Path:
        pager = self.futures[(flavour, "")].result()
        source = HERE / f"{program}.cc"
        inputs = [source, HERE / "check.h", *sorted(PAGER.glob("*.h")), pager]
        return self._compile(program, f'#include "{source}"\n', inputs, FLAVOURS[flavour], [str(pager)])

    def _compile(
        self, name: str, text: str, inputs: list[Path], flags: list[str], objects: list[str] | None = None
    ) -> Path:
        digest = hashlib.sha256(repr((self.compiler, COMMON, flags, text)).encode())
        for path in inputs:
            digest.update(path.read_bytes())
        folder = self.folder / digest.hexdigest()[:24]
        output = folder / name
        if output.exists():
            return output
        folder.mkdir(parents=True, exist_ok=True)
        main = folder / f"main.{os.getpid()}.cc"
        main.write_text(text)
        unfinished = folder / f"{name}.{os.getpid()}"
        command = [self.compiler, *COMMON, *flags, str(main), *(objects or []), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        main.unlink()
        if done.returncode != 0:
            raise BuildError(f"{' '.join(command)}\n{done.stderr}")
        unfinished.rename(output)
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
