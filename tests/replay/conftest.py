"""Makes the replay tool and the synthetic traces importable."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parents[1] / "tools"), str(_HERE)]
