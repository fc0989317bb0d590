"""What was predicted for a GPU without having one, to stand beside what is measured on it.

predictions.json is what tests/cuda/predictions/predict.py writes.
"""

from __future__ import annotations

import json
from pathlib import Path

_MODEL = "transformer"  # throughput.py's, at full scale


def ratio(gpu: str | None, contender: str) -> float | None:
    """The time of a contender's step, divided by that of a step without LMS. None where nothing was predicted."""
    known = json.loads(Path(__file__).with_name("predictions.json").read_text())
    contenders = known.get(gpu, {}).get(_MODEL, {})
    return contenders[contender]["seconds"] / contenders["stock"]["seconds"] if contender in contenders else None
