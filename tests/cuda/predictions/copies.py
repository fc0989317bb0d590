"""Predicts how fast blocks are paged out and brought back, by their size, beside plain copies of pinned memory.

    python tests/cuda/predictions/copies.py --python PYTHON [--machine NAME]... [--gib N]

as predict.py, with what ci/gpu measures under "bandwidth". Prints tables in Markdown.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from predictions import machine
from predictions.machine import Machine
from predictions.predict import Predictor, script_parser, script_predictor

MIB = 1 << 20
BLOCKS = (2, 4, 8, 16, 32, 64, 256)  # MiB


def ratios(predictor: Predictor, on: Machine, total: int, block: int) -> dict[str, float]:
    """The speed out and in, divided by that of a plain copy the same way. `total`, `block`: bytes."""
    with TemporaryDirectory() as folder:
        words = [*predictor.command("copy_time.py"), str(total), "1", str(block)]
        environment = predictor.environment(on, Path(folder))
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{on.name}, blocks of {block} bytes:\n{done.stderr}")
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return {way: seconds[f"plain_{way}"][0] / seconds[way][0] for way in ("out", "in")}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--gib", type=int, default=1, help="how much lives, and is moved (1)")
    arguments = parser.parse_args()
    if arguments.gib < 1:
        parser.error("--gib: at least 1")
    predictor = script_predictor(parser, arguments)
    print("| | " + " | ".join(f"{block} MiB" for block in BLOCKS) + " |")
    print("| --- |" + " ---: |" * len(BLOCKS))
    for on in map(Machine, arguments.machine or machine.NAMES):
        cells = []
        for block in BLOCKS:
            found = ratios(predictor, on, arguments.gib << 30, block * MIB)
            cells.append(f"{found['out']:.2f}, {found['in']:.2f}")
        print(f"| {on.device} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
