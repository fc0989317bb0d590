"""Tries hostile inputs of every class for some minutes, and tells those on which the tool breaks its promise.

    python tests/hostile/try_all.py --minutes 60 --write docs/hostile.md

The promise: any input ends with exit code 0 or that of a failure which is catalogued, with a sentence; never with a traceback, a hang,
something left behind, or output that a second reader refuses. An input is told by its class, the seed and its number, and made again
by `--only CLASS --seed S --number N`.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("hostile", "tool", "conda")]

import inputs
import running

PAGE = """# Hostile inputs

The tool is given inputs that are changed at random: the bytes of real archives, fields of their headers, values in JSON and TOML files,
files and objects of a repository, answers of a registry, variables and words of the command line. Each has to end with exit code 0 or with that of a failure which is
catalogued (`tools/lmsbuild/errors.py`), and a sentence that says what to do; never with a traceback, after a minute, with files
left behind, with code of the input run, or with output that a second reader refuses: zipfile and our own check of wheels, py-rattler for
channels. Nothing may go on running, or be left in the folder for temporary files. CI tries {examples} of them; this page is written by

```sh
python tests/hostile/try_all.py --minutes {minutes} --seed {seed} --write docs/hostile.md
```

| class | inputs | of these exit code 0 | kinds of failures that were said | promise broken |
| --- | ---: | ---: | ---: | ---: |
{rows}

What each class is, `tests/hostile/inputs.py` says. Other inputs, one by one: `tests/tool/test_sentences.py`, `test_malformed_wheel.py`,
`test_foreign_code.py`, `tests/conda/test_bad_packages.py`.
"""
EXAMPLES = dict.fromkeys(inputs.CLASSES, 6) | {"served": 2, "settings": 4}  # of each class, in CI


def attempt(seeds: inputs.Seeds, kind: str, seed: int, number: int, folder: Path) -> running.Verdict:
    """Makes input `number` of a class, and judges what becomes of it; leaves its folder only when the promise is broken."""
    folder.mkdir(parents=True)
    case = inputs.CLASSES[kind](seeds, random.Random(f"{kind} {seed} {number}"), folder)
    verdict = running.judge(case, folder, running.names(folder))
    if not verdict.wrong:
        for root, folders, _ in os.walk(folder):  # of an unpacked archive
            for name in folders:
                os.chmod(Path(root, name), 0o700) if not Path(root, name).is_symlink() else None
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def isolated(folder: Path) -> None:
    """Sets what the tool reads of the environment, for this process and those that it starts."""
    for name in ("cache", "home"):
        (folder / name).mkdir()
    os.environ.update(LMSBUILD_CACHE=str(folder / "cache"), HOME=str(folder / "home"), PIP_NO_INDEX="1")


def numbers(kinds: list[str], seconds: float) -> Iterator[tuple[str, int]]:
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for kind in kinds:
            yield kind, number
        number += 1


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True, help="How long to try.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--only", "kinds", multiple=True, type=click.Choice(list(inputs.CLASSES)), help="A class, in place of all."
)
@click.option("--number", type=int, help="One input alone.")
@click.option("--write", "page", type=click.Path(path_type=Path), help="Write the table to this file.")
def main(minutes: float, seed: int, kinds: tuple[str, ...], number: int | None, page: Path | None) -> None:
    chosen = list(kinds or inputs.CLASSES)
    kept = Path(tempfile.mkdtemp(prefix="hostile-"))
    isolated(kept)
    (kept / "seeds").mkdir()
    seeds = inputs.prepare(kept / "seeds")
    told: dict[str, Counter[str]] = {kind: Counter() for kind in chosen}
    broken: Counter[str] = Counter()
    wanted = numbers(chosen, minutes * 60) if number is None else iter([(kind, number) for kind in chosen])
    for kind, each in wanted:
        verdict = attempt(seeds, kind, seed, each, kept / f"{kind}-{each}")
        told[kind][verdict.outcome] += 1
        if verdict.wrong:
            broken[kind] += 1
            click.echo(
                f"--only {kind} --seed {seed} --number {each} ({kept / f'{kind}-{each}'}): {verdict.wrong[:3000]}"
            )
        elif number is not None:
            click.echo(f"{kind} {each}: {verdict.outcome}")
    rows = [
        f"| {kind} | {sum(found.values()):,} | {found['success']:,} | {len(set(found) - {'success'})} | {broken[kind]} |"
        for kind, found in told.items()
    ]
    click.echo("\n".join(rows))
    if page:
        page.write_text(
            PAGE.format(examples=sum(EXAMPLES.values()), minutes=f"{minutes:g}", seed=seed, rows="\n".join(rows))
        )
    if not broken:
        shutil.rmtree(kept, ignore_errors=True)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
