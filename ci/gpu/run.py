"""Builds the graft against the installed torch and runs, on a real GPU, what has to be correct and what is measured.

``python ci/gpu/run.py --out results``; docs/gpu.md explains the parts, the numbers and the exit codes.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # lmsbuild, which need not be installed

import bandwidth
import correctness
import first
import interpreter
import mapping
import overlay
import plot
import results
import runtime
import simulation
import throughput
from process import output, say
from session import Session

from lmsbuild.errors import CompilerFailed, Failure, NoGpu, OutputNotWritable
from lmsbuild.graft import compilation

PARTS = ("first", "correctness", "mapping", "bandwidth", "throughput")
_INTERRUPTED = 130
_SHOWN = 4000  # characters of what a compiler said


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Large Model Support on a real GPU: builds the graft against the installed torch, checks, measures."
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the results; what it holds of this machine is gone on with"
    )
    add_earlier(parser)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only; may be repeated")
    parser.add_argument(
        "--case", choices=correctness.CASES, action="append", help="of correctness, this case only; may be repeated"
    )
    add_amounts(parser)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter with torch (this one)")
    parser.add_argument(
        "--cuda-include", type=headers, action="append", default=[], help="folder with CUDA headers; may be repeated"
    )
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "gpu", help="folder that keeps the graft (default: build/gpu)"
    )
    parser.add_argument("--commit", help="what is checked out, for the results (default: what git says)")
    parser.add_argument(
        "--simulated", action="store_true", help="without a GPU: on the simulated CUDA, up to where kernels start"
    )
    options = parser.parse_args(arguments)
    if options.case and "correctness" not in (options.only or PARTS):
        parser.error("--case is for the part correctness, which --only leaves out")
    return options


def add_amounts(parser: argparse.ArgumentParser) -> None:
    """The options --scale and --minutes, for run_tensorflow.py too."""

    def positive(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
        return value

    def finite(text: str) -> float:
        value = positive(text)
        if value == math.inf:
            raise argparse.ArgumentTypeError(f"{text} is no size")
        return value

    parser.add_argument(
        "--scale", type=finite, default=1.0, help="size of what is trained and copied (default %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=positive, default=math.inf, help="after which nothing new is begun (default: no limit)"
    )


def headers(text: str) -> Path:
    """A folder that has headers of CUDA. Any other is wrong usage."""
    folder = Path(text)
    if not any((folder / header).exists() for header in runtime.HEADERS):
        raise argparse.ArgumentTypeError(f"{folder} has neither {' nor '.join(runtime.HEADERS)}")
    return folder


def add_earlier(parser: argparse.ArgumentParser) -> None:
    """The option --from, for run_tensorflow.py too. A folder that is missing is wrong usage."""

    def folder(text: str) -> Path:
        if not Path(text).is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {text}")
        return Path(text)

    parser.add_argument(
        "--from", dest="earlier", type=folder, metavar="FOLDER", help="with earlier results, for what --out lacks"
    )


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(options)
    except Failure as error:
        say(f"error: {error}")
        if isinstance(error, CompilerFailed):
            say(error.said[:_SHOWN])
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; what was done is in the results, and the same command goes on there")
        return _INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    deadline = time.monotonic() + 60 * options.minutes
    environment = dict(os.environ)
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # which cuBLAS needs to be deterministic
    build = options.build.resolve()
    torch = interpreter.look(options.python, environment)
    overlay.find_tag(ROOT / "patches", torch)
    compilation.compiler()
    if options.simulated:
        results.make_writable(build)
        environment = simulation.environment(ROOT, torch.cuda, build, environment)
        torch = interpreter.look(options.python, environment)
    if torch.device is None:
        raise NoGpu(
            f"torch {torch.version} sees no CUDA device. On a machine with a GPU, check that nvidia-smi shows it; "
            "without one, --simulated goes as far as a simulated device can"
        )
    for folder in (options.out, build):
        results.make_writable(folder)
    if options.earlier:
        results.take_over(options.earlier, options.out, PARTS)
    cuda = runtime.find(torch.folder, torch.cuda, environment, options.cuda_include)
    site, sources = overlay.build(torch, ROOT / "patches", cuda, build)
    about = results.About(
        command=command(options),
        commit=options.commit or checked_out(),
        sources=sources,
        machine=interpreter.machine(torch, None if options.simulated else driver_version()),
        scale=options.scale,
        simulated=options.simulated,
    )
    session = Session(
        python=options.python,
        environment=overlay.environment(site, environment),
        models=ROOT / "tools" / "lmsbuild" / "programs" / "models.py",
        simulated=options.simulated,
        scale=options.scale,
        deadline=deadline,
        gpu=about.machine["gpu"],
    )
    runs: dict[str, tuple[Callable[[bool], list[str]], Callable[[Session, results.Part], None]]] = {
        "first": (first.units, first.run),
        "correctness": (correctness.units, partial(correctness.run, cases=options.case or correctness.CASES)),
        "mapping": (mapping.units, mapping.run),
        "bandwidth": (bandwidth.units, bandwidth.run),
        "throughput": (throughput.units, throughput.run),
    }
    failed: list[Failure] = []
    for name in options.only or PARTS:
        units, run = runs[name]
        say(f"{name}:")
        if not units(options.simulated):
            say("  needs a GPU: it trains, and nothing runs kernels here")
            continue
        try:
            part = results.Part(name, about, options.out, units(options.simulated))
            run(session, part)
            part.end()
        except OutputNotWritable:
            raise  # what is not kept need not be measured
        except Failure as error:
            say(f"error: {error}")
            failed.append(error)
    picture = plot.draw(options.out, options.simulated)
    say(f"picture: {picture}" if picture else "no picture: there is no matplotlib, or nothing to draw")
    if options.simulated:
        say("On a simulated device the numbers mean nothing; that the parts run, and contents agree, is the result.")
    return failed[0].exit_code if failed else 0


def command(options: argparse.Namespace) -> str:
    """The command, as it stands in the results: without the folders of this machine."""
    words = ["python", "ci/gpu/run.py", "--out", options.out.name]
    for name in ("only", "case"):
        for value in getattr(options, name) or ():
            words += [f"--{name}", value]
    words += ["--scale", f"{options.scale:g}"] if options.scale != 1 else []
    words += ["--simulated"] if options.simulated else []
    return shlex.join(words)


def checked_out() -> str:
    """The commit that is checked out, marked when files were changed; "unknown" outside of a checkout."""
    return output(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]) or "unknown"


def driver_version() -> str | None:
    """The driver's version as nvidia-smi tells it; None where it cannot."""
    lines = output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).splitlines()
    return lines[0] if lines else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
