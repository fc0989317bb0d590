"""Builds one row by the tool's own command, in a process of its own: on this machine, or in a worker of a cluster."""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from platform import node
from typing import Any

from lmsbuild import command, paths
from lmsbuild.catalogue import catalogue
from lmsbuild.errors import BuildFailed, Failure, OtherTool, disk_failures
from lmsbuild.matrix import stamp
from lmsbuild.matrix.row import Row
from lmsbuild.matrix.stamp import Product
from lmsbuild.wheel.wheel import file_sha256
from lmsbuild.workspace import publish, workspace

TOOL = (sys.executable, "-m", "lmsbuild")
_ERROR = "error: "


@dataclass(frozen=True)
class Job:
    """A row that has to be built."""

    row: Row
    output: Path  # absolute
    options: tuple[str, ...]  # of `lmsbuild conda`
    inputs: Mapping[str, Any]  # what it is made from, as whoever asks for it sees that


@dataclass(frozen=True)
class Outcome:
    """What became of a row."""

    row: Row
    state: str  # "built", "up to date" or "failed"
    seconds: float = 0.0
    reason: str = ""  # of a failure
    exit_code: int = 0  # of the command that built it, or of the failure
    host: str = ""  # the machine that built it
    products: tuple[Product, ...] = ()


class _CommandFailed(Exception):
    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def failed(row: Row, reason: str, exit_code: int) -> Outcome:
    return Outcome(row, "failed", reason=reason, exit_code=exit_code)


def run(job: Job) -> Outcome:
    """Builds the row, puts its files into the output and leaves a stamp. Whatever goes wrong is in the outcome."""
    begun = time.monotonic()
    log = stamp.log_file(job.output, job.row)
    try:
        with disk_failures(job.output):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"")
            products = _build(job, log)
        outcome = Outcome(job.row, "built", products=tuple(products))
    except _CommandFailed as error:
        outcome = failed(job.row, str(error), error.code)
    except Failure as error:
        outcome = failed(job.row, str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001  (a fault of the tool, which is no reason to leave out the other rows)
        outcome = failed(job.row, f"{type(error).__name__}: {error}\n{traceback.format_exc()}", 1)
    return replace(outcome, seconds=round(time.monotonic() - begun, 1), host=node())


def _build(job: Job, log: Path) -> list[Product]:
    if stamp.inputs(job.row, job.options) != job.inputs:
        raise OtherTool(
            f"lmsbuild on {node()} has another version, or other patches or recipes, than the one that asks for the row: "
            "install the same one on all machines"
        )
    with workspace(job.output) as scratch:
        made = scratch / "made"
        _run_tool(_words(job, made), log)
        products = []
        for built in _files(job.row, made):
            target = job.output / built.relative_to(made)
            target.parent.mkdir(exist_ok=True)
            digest = file_sha256(built)
            publish(built, target)
            products.append(Product(target.relative_to(job.output).as_posix(), digest))
    stamp.write(job.output, job.row, job.inputs, products)
    return products


def _words(job: Job, made: Path) -> list[str]:
    """The command that a user would give for the row."""
    row = job.row
    words = ["conda"] if row.kind == "conda" else []
    words += [row.framework, row.tag, "--python", row.python, "--platform", row.platform, "--verbose"]
    words += catalogue.package_words(paths.patches_folder(), row.framework, row.package)
    if row.kind == "conda":
        words += job.options
        wheel = replace(row, kind="wheel")
        if known := stamp.read(job.output, wheel, stamp.inputs(wheel, ())):
            words += ["--wheel", str(job.output / known[0].path)]
    return [*words, "--output", str(made)]


def _run_tool(words: list[str], log: Path) -> None:
    with (
        log.open("ab") as stream,
        # A worker may be killed: no build of a row that is given to another goes on.
        command.started(
            [*TOOL, *words], dies_with_thread=True, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        ) as process,
    ):
        code = process.wait()
    if code:
        raise _CommandFailed(_reason(log, code), code)


def _reason(log: Path, code: int) -> str:
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in said if line.startswith(_ERROR)]
    return (errors or said[-1:] or [f"it ended with {code} and said nothing"])[-1]


def _files(row: Row, made: Path) -> list[Path]:
    """What the command made of the row: one wheel, or packages. The wheel that these were made from is another row's."""
    found = sorted(made.glob("*/*.conda" if row.kind == "conda" else "*.whl"))
    if not found or (row.kind == "wheel" and len(found) > 1):
        raise BuildFailed(f"the command ended well but left {len(found)} files")
    return found
