"""What to expect on a card: a transformer's step under LMS in less memory than it needs, by width and by machine.

    python tests/cuda/predictions/expect.py --python PYTHON

as predict.py, whose transformer it is: the same tokens, AdamW and bfloat16, with layers of other widths, and with
gradients of several batches accumulated. Prints a table in Markdown.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from predictions import machine
from predictions.machine import Machine
from predictions.predict import Predicted, script_parser, script_predictor

# Width, layers, batches whose gradients are accumulated. The layers fit a card together; more of them change nothing much.
SHAPES = ((2048, 8, 1), (4096, 4, 1), (8192, 1, 1), (2048, 8, 8), (4096, 4, 8), (8192, 1, 8))
FACTORS = (1.5, 2.0)


def cell(lms: Predicted, on: Machine, stock: Predicted) -> str:
    return f"{lms.seconds / stock.seconds:.2f} ({lms.bound(on, stock) / stock.seconds:.2f})"


def main() -> None:
    parser = script_parser(__doc__)
    arguments = parser.parse_args()
    predictor = script_predictor(parser, arguments)
    names = arguments.machine or machine.NAMES
    print("| width, batches | in |", " | ".join(Machine(name).device for name in names), "|")
    print("| --- | --- |", " ---: |" * len(names), sep="")
    for width, layers, batches in SHAPES:
        model = f"transformer:{width}:{layers}:{batches}"
        cells: dict[float, list[str]] = {factor: [] for factor in FACTORS}
        for on in map(Machine, names):
            stock = predictor.predict(on, model, "stock", "stock")
            for factor in FACTORS:
                lms = predictor.predict(on, model, f"lms {factor:g}x", f"lms:{int(stock.peak / factor)}")
                cells[factor].append(cell(lms, on, stock))
        for factor, found in cells.items():
            print(f"| {width}, {batches} | 1/{factor:g} |", " | ".join(found), "|", flush=True)


if __name__ == "__main__":
    main()
