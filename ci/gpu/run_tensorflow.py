"""Checks on a real GPU that a patched TensorFlow is correct under a limit.

``python ci/gpu/run_tensorflow.py --out results``, with the interpreter that has the patched wheel; docs/gpu.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # lmsbuild, which need not be installed

import interpreter
import results
from correctness import nothing_moved, same
from oversubscription import limit_for
from process import say
from results import MIB, Part
from run import add_amounts, add_earlier, checked_out, driver_version
from session import Session

from lmsbuild.errors import Failure, NoFramework, NoGpu, WrongResult

MODELS = ("convnet", "transformer", "lstm", "unet3d")
NAME = "tensorflow"  # of the part that the results make
CONTENTS = "contents"
CASES = (CONTENTS, *MODELS)
_STEPS = 6
_SCALE = 4.0  # of the models: at 1 their tensors are smaller than a device's pages
_LIMIT = 512 * MIB  # of the tensors whose contents are compared
_LIMIT_SIMULATED = 32 * MIB
_INTERRUPTED = 130


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Large Model Support of TensorFlow on a real GPU: is it correct?")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    add_earlier(parser)
    parser.add_argument("--case", choices=CASES, action="append", help="this case only; may be repeated")
    add_amounts(parser)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter with TensorFlow (this)")
    parser.add_argument(
        "--simulated", action="store_true", help="no kernel can run: contents only; the environment has the simulation"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        return _run(options)
    except Failure as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
    found = interpreter.ask(options.python, "about_tensorflow.py", environment, "TensorFlow")
    if not found["lms"] or not found["cuda"]:
        raise NoFramework(
            f"{options.python} has TensorFlow {found['version']}, but not a patched one for GPUs: "
            f"`lmsbuild tensorflow v{found['version']}` makes its wheel; install that"
        )
    if not found["gpus"]:
        raise NoGpu(f"TensorFlow {found['version']} sees no GPU: check that nvidia-smi shows it, and CUDA's libraries")
    results.make_writable(options.out)
    if options.earlier:
        results.take_over(options.earlier, options.out, [NAME])
    about = results.About(
        command=command(options),
        commit=checked_out(),
        sources=_digest(),
        machine={**found, "driver": None if options.simulated else driver_version()},
        scale=options.scale,
        simulated=options.simulated,
    )
    session = Session(
        python=options.python,
        environment=environment,
        models=ROOT / "tools",
        simulated=options.simulated,
        scale=options.scale,
        deadline=begin + options.minutes * 60,
    )
    cases = [CONTENTS] if options.simulated else list(CASES)
    part = Part(NAME, about, options.out, cases)
    for case in part.each(session.out_of_time, [case for case in cases if case in (options.case or CASES)]):
        part.attempt(case, partial(_contents, session) if case == CONTENTS else partial(_training, session, case))
    part.end()
    return 0


def command(options: argparse.Namespace) -> str:
    """The command, as it stands in the results: without the folders of this machine, so `python` is any that fits."""
    words = ["python", "ci/gpu/run_tensorflow.py", "--out", options.out.name]
    for case in options.case or ():
        words += ["--case", case]
    words += ["--scale", f"{options.scale:g}"] if options.scale != 1 else []
    return shlex.join([*words, *(["--simulated"] if options.simulated else [])])


def _digest() -> str:
    """Of the glue, the pager, and these scripts."""
    digest = hashlib.sha256()
    for folder in ("patches/src/pager", "patches/src/python", "patches/src/tensorflow", "ci/gpu"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _contents(session: Session) -> dict[str, Any]:
    limit, operations = (_LIMIT_SIMULATED, 100) if session.simulated else (_LIMIT, 600)
    checks = []
    for factor in (2, 4):
        found = session.run("contents_tensorflow.py", limit, factor, operations, factor)
        _require(not found["wrong"], f"contents differ at {factor}x after operations {found['wrong'][:8]}", found)
        _require(not nothing_moved(found["statistics"]), f"at {factor}x nothing was paged out and in", found)
        checks.append({"oversubscription": factor, "limit_bytes": limit, **found})
        say(f"  contents at {factor}x: equal")
    return {"checks": checks}


def _training(session: Session, model: str) -> dict[str, Any]:
    arguments = ("train_keras.py", model, _STEPS, _SCALE * session.scale, session.models)
    stock, again, roomy = (session.run(*run) for run in (arguments, arguments, (*arguments, 0)))
    _require(same(stock, again), "two runs without LMS differ, so there is nothing to compare with", stock)
    need = roomy["statistics"]["allocated_bytes.peak"]
    checks = [_check(stock, roomy, 1, "iteration", 0)]
    for factor, policy in ((2, "iteration"), (4, "iteration"), (2, "lru")):
        limit = limit_for(need, factor)
        checks.append(_check(stock, session.run(*arguments, limit, policy), factor, policy, limit))
        say(f"  {model} at {factor}x, {policy}: equal")
    return {"need_bytes": need, "steps": _STEPS, "checks": checks}


def _check(stock: dict[str, Any], managed: dict[str, Any], factor: float, policy: str, limit: int) -> dict[str, Any]:
    _require(same(stock, managed), f"at {factor}x with {policy} the training differs from the stock one", managed)
    moved = managed["statistics"]
    _require(factor == 1 or not nothing_moved(moved), f"at {factor}x nothing was paged out and in", managed)
    return {"oversubscription": factor, "policy": policy, "limit_bytes": limit, "statistics": moved}


def _require(right: bool, what: str, facts: dict[str, Any]) -> None:
    if not right:
        raise WrongResult(what, facts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
