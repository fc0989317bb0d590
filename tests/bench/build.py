"""Times the tool's commands: the main job by stage, and what a user types most.

    python tests/bench/build.py [--only WORDS]

Every command runs in folders of its own, one after the other. "empty" is a cache with nothing in it, for which the network is
asked; "base" one with the base wheel alone; "warm" one that a build of the same tag has filled. Beside them is what cannot be
less: the hash of the base wheel and its unpacking by other programs, and what the compilers take by themselves.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BUILDS = (
    ("pytorch", "v2.13.0"),
    ("tensorflow", "v2.21.0", "--package", "tensorflow-cpu"),
)
SHORT = (("--help",), ("list",), ("matrix",), ("doctor",))
TURNS = 5  # of a short command, of which the fastest counts
# A compiler that notes the processor time of each call.
COMPILER = """#!/bin/bash
TIMEFORMAT='%U %S'
{{ time {compiler} "$@" 2>&3; }} 3>&2 2>> {log}
"""


@dataclass
class Timed:
    """How long a command took, in seconds."""

    elapsed: float = 0.0
    processor: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    printed: str = ""


def timed(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Timed:
    """Runs a command; its stages are the lines of stderr that begin at the margin. Exits when it fails."""
    before = _processor_time()
    begin = last = time.monotonic()
    found = Timed()
    stage = "start"
    said = []
    with tempfile.TemporaryFile("w+") as printed:
        with subprocess.Popen(
            words, stdout=printed, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        ) as program:
            assert program.stderr is not None
            for line in program.stderr:
                said.append(line)
                if line[:1].isalpha():
                    now = time.monotonic()
                    found.stages[stage] = now - last
                    stage, last = line.strip(), now
        printed.seek(0)
        found.printed = printed.read()
    if program.returncode:
        sys.exit(f"{shlex.join(words)} ended with {program.returncode}:\n{''.join(said)}")
    end = time.monotonic()
    found.stages[stage] = end - last
    found.elapsed, found.processor = end - begin, _processor_time() - before
    return found


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _builds(words: Sequence[str], folder: Path) -> Iterator[tuple[str, Timed]]:
    """The runs of one build, by the state of the cache; and what its parts take in other programs."""
    cache = folder / "cache"
    environment = {"LMSBUILD_CACHE": str(cache)}
    command = [sys.executable, "-m", "lmsbuild", *words, "--output", str(folder / "dist")]
    yield "empty", timed(command, environment)
    shutil.rmtree(cache / "objects")
    yield "base", timed(command, environment)
    yield "warm", timed(command, environment)
    base = max(cache.rglob("*.whl"), key=lambda path: path.stat().st_size)
    yield "sha256sum of the base", timed(["sha256sum", str(base)])
    if shutil.which("unzip"):
        yield "unzip -t of the base", timed(["unzip", "-qt", str(base)])
    yield "the compilers alone", _compilers(command, environment, folder)


def _compilers(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Timed:
    log, script = folder / "compilers.log", folder / "compiler"
    script.write_text(COMPILER.format(compiler=os.environ.get("CXX", "g++"), log=shlex.quote(str(log))))
    script.chmod(0o755)
    timed(command, {**environment, "CXX": str(script)})
    numbers = [float(number) for line in log.read_text().splitlines() for number in line.split() if _is_number(number)]
    return Timed(processor=sum(numbers))


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _print_stages(title: str, runs: Mapping[str, Timed]) -> None:
    print(f"\n{title}: seconds\n")
    names = list(dict.fromkeys(name for run in runs.values() for name in run.stages))
    with_stages = {state: run for state, run in runs.items() if len(run.stages) > 1}
    print(f"| stage | {' | '.join(with_stages)} |")
    print(f"| --- |{' ---: |' * len(with_stages)}")
    for name in names:
        cells = [run.stages.get(name, 0.0) for run in with_stages.values()]
        if max(cells) >= 0.05:
            print(f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")
    print(f"| **all** | {' | '.join(f'**{run.elapsed:.1f}**' for run in with_stages.values())} |")
    print(f"| of processors | {' | '.join(f'{run.processor:.1f}' for run in with_stages.values())} |")
    print("\n| what cannot be less | seconds of a processor |\n| --- | ---: |")
    for name, run in runs.items():
        if name not in with_stages:
            print(f"| {name} | {run.processor:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the builds of this framework, or `short`")
    only = parser.parse_args().only
    wheel = ""
    for words in BUILDS:
        if only not in ("", words[0]):
            continue
        with tempfile.TemporaryDirectory() as name:
            runs = dict(_builds(words, Path(name)))
            _print_stages(f"`lmsbuild {shlex.join(words)}`", runs)
            if words[0] == "pytorch":
                wheel = runs["warm"].printed.strip()
                trial = timed([sys.executable, "-m", "lmsbuild", "try", wheel, "--output", name])
                _print_stages("`lmsbuild try`", {"once": trial})
    if only in ("", "short"):
        print("\n| command | seconds | of processors |\n| --- | ---: | ---: |")
        for words in SHORT:
            best = min(
                (timed([sys.executable, "-m", "lmsbuild", *words]) for _ in range(TURNS)), key=lambda run: run.elapsed
            )
            print(f"| `lmsbuild {shlex.join(words)}` | {best.elapsed:.2f} | {best.processor:.2f} |")


if __name__ == "__main__":
    main()
