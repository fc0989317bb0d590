"""Predicts what `min_size` does to a step in half of its memory: blocks that are smaller stay with the stock allocator.

    python tests/cuda/predictions/min_size.py --python PYTHON [--machine NAME]...

as predict.py. Prints a table in Markdown; the limit is lowered by nothing that stays, so its peak may pass it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from predictions import machine
from predictions.machine import Machine
from predictions.predict import MODELS, Predicted, script_parser, script_predictor

MIB = 1 << 20
SIZES = (1, 2, 4, 8, 16, 32)  # MiB
FACTOR = 2


def cell(lms: Predicted, stock: Predicted) -> str:
    past = lms.peak / (stock.peak / FACTOR)
    return f"{lms.seconds / stock.seconds:.2f}" + (f" ({past:.0%})" if past > 1.01 else "")


def main() -> None:
    parser = script_parser(__doc__)
    arguments = parser.parse_args()
    predictor = script_predictor(parser, arguments)
    print("| | | " + " | ".join(f"{size} MiB" for size in SIZES) + " |")
    print("| --- | --- |" + " ---: |" * len(SIZES))
    for on in map(Machine, arguments.machine or machine.NAMES):
        for model in (*MODELS, "functions"):
            stock = predictor.predict(on, model, "stock", "stock")
            modes = (f"lms:{stock.peak // FACTOR}:{size * MIB}" for size in SIZES)
            cells = [cell(predictor.predict(on, model, mode, mode), stock) for mode in modes]
            print(f"| {on.device} | {model} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
