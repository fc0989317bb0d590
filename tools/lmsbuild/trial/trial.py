"""`lmsbuild try`: trains a model three times its memory limit in a throw-away environment, and compares.

Three trainings, each in a process of its own: with the stock allocator; with the pager without a limit, to measure the peak; with
the pager and a third of that peak. The first and the last must give the same losses and trained tensors to the bit.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from lmsbuild import command, paths, report
from lmsbuild.catalogue import catalogue
from lmsbuild.errors import MissingProgram, ResultsDiffer, TrialFailed, WrongPlatform, WrongVersion, disk_failures
from lmsbuild.fetch import pip_command
from lmsbuild.trial import timeline
from lmsbuild.trial.timeline import Sample
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.wheel import WheelFile

_MIB = 1 << 20
OVERSUBSCRIPTION = 3
UNLIMITED = 1 << 50  # bytes
# What wheels do not say that they need, by release: torch 1.4.0 nothing of numpy, TensorFlow's older ones not that other
# packages must not be newer.
_ALSO = {
    "pytorch": {">=0": "numpy"},
    "tensorflow": {
        "<2.3": "numpy<1.20",
        "<2.12": "numpy<2",
        "<2.10": "protobuf<3.21",
        ">=2.6,<2.6.2": "keras<2.7",
        "<2.6.2,>=2.6": "tensorflow-estimator<2.7",
    },
}


@dataclass(frozen=True)
class Training:
    """What one training run reported. Sizes in bytes."""

    losses: tuple[str, ...]  # as hexadecimal floats, exact
    digest: str
    hashed: str  # what the digest is of
    statistics: dict[str, int]
    run: timeline.Run
    seconds: float


def run(
    wheel: Path,
    output: Path | None,
    model: str,
    steps: int,
    interpreter: Path | None = None,
    environment: Path | None = None,
) -> str:
    """Trains and returns a report for the reader; writes the picture of both into `output`, if that is given.

    `interpreter` is the Python that the wheel is for; None: the running one. `environment` is a folder for the environment,
    which stays there: another trial with it installs only what that wheel requires and the one before did not. Raises
    ResultsDiffer when the runs differ, TrialFailed when one does not end, WrongVersion when the wheel is not patched,
    WrongPlatform when it is for another interpreter.
    """
    name = parse_name(wheel)
    if not name.is_patched:
        raise WrongVersion(
            f"{wheel.name} is no patched wheel: build one with `lmsbuild pytorch` or `lmsbuild tensorflow`"
        )
    framework = catalogue.framework_of(paths.patches_folder(), name.package)
    interpreter = interpreter or Path(sys.executable)
    abi, version = _examine(interpreter)
    if abi not in {tag.abi for tag in name.tags}:
        raise WrongPlatform(
            f"{wheel.name} is not for the interpreter {interpreter} ({version}, {abi}): give the one it is for with --python"
        )
    with report.stages():
        with tempfile.TemporaryDirectory(prefix="lmsbuild-try-") as temporary:
            folder = Path(temporary)
            report.stage("environment")
            python = _environment(environment or folder / "venv", _checked(wheel, folder), framework, interpreter)
            stock, ample, limited = _train(python, folder, framework, model, steps)
            report.stage("remove the environment")
        peak = ample.statistics["allocated_bytes.peak"]
        limit = peak // OVERSUBSCRIPTION
        same = stock.losses == limited.losses and stock.digest == limited.digest
        text = _describe(model, stock, limited, peak, limit, same)
        if output:
            report.stage("picture")
            output.mkdir(parents=True, exist_ok=True)
            title = f"Training the {model}: {peak / _MIB:.0f} MiB of tensors in {limit / _MIB:.0f} MiB of memory"
            picture = timeline.draw(output / f"lms-{model}", ample.run, limited.run, limit, title)
            text += f"\n  memory over time: {picture}, {picture.with_suffix('.svg').name}"
    if not same:
        raise ResultsDiffer(f"results differ, which is a bug in Large Model Support: please report it\n{text}")
    return text


def find_interpreter(version: str) -> Path:
    """The interpreter of a version such as 3.7 that PATH has. Raises MissingProgram."""
    found = shutil.which(f"python{version}")
    if found is None:
        raise MissingProgram(
            f"there is no python{version} in PATH, which has to try the wheel: install it, or extend PATH"
        )
    return Path(found)


def _examine(interpreter: Path) -> tuple[str, str]:
    """The ABI tag and the version of an interpreter. Raises MissingProgram."""
    program = "import sys; print('cp%d%d%s' % (*sys.version_info[:2], sys.abiflags), sys.version.split()[0])"
    examined = command.run([interpreter, "-I", "-c", program])
    said = examined.text.split()
    if examined.code or len(said) != 2:
        raise MissingProgram(f"{interpreter} is no Python interpreter: {_last_line(examined.error_text)}")
    return said[0], said[1]


def also_needs(framework: str, version: str) -> list[str]:
    """What the wheels of a release need besides what they say that they do, as pip takes it."""
    return [need for releases, need in _ALSO[framework].items() if SpecifierSet(releases).contains(version)]


def _checked(wheel: Path, folder: Path) -> Path:
    """A copy of the wheel, in a folder that nobody else writes to, which is what its RECORD says. Raises as WheelFile does."""
    copy = folder / wheel.name
    with disk_failures(folder), InputFile(wheel) as file:
        file.copy_to(copy)
    with WheelFile(copy) as opened, report.progress("verify", opened.total_size(), is_bytes=True) as show:
        opened.verify(lambda name: None, show)
    return copy


def _environment(folder: Path, wheel: Path, framework: str, interpreter: Path) -> Path:
    """Makes a virtual environment, if `folder` is none yet, with the wheel in it and returns its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        made = command.run([interpreter, "-m", "venv", "--symlinks", folder])
        if made.code:
            raise TrialFailed(
                f"{interpreter} cannot make a virtual environment: {_last_line(made.error_text or made.text)}"
            )
    words: list[str | Path] = [
        "install",
        "--quiet",
        "--no-compile",  # most of what a CUDA wheel requires is never imported
        wheel,
        *also_needs(framework, parse_name(wheel).version.public),
    ]
    with report.progress("pip install", None):
        installed = pip_command.run(words, python=python)
    if installed.code:
        raise TrialFailed(f"pip cannot install {wheel.name}: {_last_line(installed.error_text)}")
    return python


def _train(python: Path, folder: Path, framework: str, model: str, steps: int) -> list[Training]:
    """Without Large Model Support, with it and sufficient memory, and with a third of what that needed."""
    # Copies, in a folder of their own: the interpreter looks for modules beside the program first.
    program = folder / "program"
    if not program.exists():
        program.mkdir()
        shutil.copy(paths.models_file(framework), program / "models.py")
        shutil.copy(paths.trial_program(), program / "training.py")
        shutil.copy(paths.trial_backend(framework), program / "backend.py")
    limits = ("none", str(UNLIMITED), f"1/{OVERSUBSCRIPTION}")
    words: list[str | Path] = [python, program / "training.py", model, str(steps), *limits]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["TMPDIR"] = str(folder)  # frameworks leave folders there
    with ExitStack() as bar:
        shown: list[report.Show] = []

        def begin(what: str) -> None:
            bar.close()
            report.stage(f"train: {what}")
            shown[:] = [bar.enter_context(report.progress(f"train {model}", steps))]

        def on_line(line: str) -> None:
            for entry in read_entries([line]):
                limit = entry.get("limit")
                if isinstance(limit, int):
                    begin(f"with it, {'memory sufficient' if limit == UNLIMITED else f'in {limit / _MIB:.1f} MiB'}")
                elif "step" in entry:
                    shown[0](entry["step"])

        begin("without Large Model Support")  # and importing the framework
        finished = command.run(words, folder=folder, environment=environment, on_line=on_line)
    if finished.code:
        raise TrialFailed(
            f"training {model} ended with exit code {finished.code}: {_last_line(finished.error_text)}; "
            "run again with -v for all that it said"
        )
    try:
        return read_trainings(finished.text, len(limits))
    except (LookupError, TypeError, ValueError) as error:
        raise TrialFailed(
            f"training {model} ended well, but without its results: run again with -v for all that it said"
        ) from error


def read_trainings(text: str, count: int) -> list[Training]:
    """Reads what training.py printed of `count` trainings. Raises LookupError, TypeError or ValueError where that is not all."""
    entries = read_entries(text.splitlines())
    begins = [index for index, entry in enumerate(entries) if "limit" in entry]
    if len(begins) != count:
        raise ValueError(f"{len(begins)} trainings, not {count}")
    return [read_training(entries[first:last]) for first, last in zip(begins, [*begins[1:], None], strict=True)]


def read_entries(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What the training program printed, without what libraries print among it."""
    entries = []
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(entry)
    return entries


def read_training(entries: Sequence[dict[str, Any]]) -> Training:
    """Reads what the training program printed, one JSON object a line."""
    last = entries[-1]
    return Training(
        losses=tuple(entry["loss"] for entry in entries if "step" in entry),
        digest=last["digest"],
        hashed=last["hashed"],
        statistics=last["statistics"],
        run=timeline.Run(
            [entry["seconds"] for entry in entries if "step" in entry],
            [Sample(*entry["sample"]) for entry in entries if "sample" in entry],
        ),
        seconds=last["seconds"],
    )


def _describe(model: str, stock: Training, limited: Training, peak: int, limit: int, same: bool) -> str:
    first, last = (float.fromhex(stock.losses[index]) for index in (0, -1))
    first_limited, last_limited = (float.fromhex(limited.losses[index]) for index in (0, -1))
    moved = limited.statistics
    return "\n".join(
        (
            f"{model}: {len(stock.losses)} steps, {peak / _MIB:.1f} MiB of tensors in {limit / _MIB:.1f} MiB",
            f"  loss without   {first!r} -> {last!r}   ({stock.seconds:.1f} s)",
            f"  loss with      {first_limited!r} -> {last_limited!r}   ({limited.seconds:.1f} s)",
            f"  losses, {stock.hashed}: {'equal to the bit' if same else 'DIFFERENT'}",
            f"  copied out {moved['out.bytes'] / _MIB:.1f} MiB, in {moved['in.bytes'] / _MIB:.1f} MiB",
            f"  resident at most {moved['resident_bytes.peak'] / _MIB:.1f} MiB{_over(moved['over_limit_bytes.peak'])}",
        )
    )


def _over(excess: int) -> str:
    return f" ({excess / _MIB:.1f} MiB over the limit, for one operation's own tensors)" if excess else ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
