"""How many times as wide as in CI the programs' models are: LMS_TEST_SCALE."""

from __future__ import annotations

import os

SCALE = int(os.environ.get("LMS_TEST_SCALE", "1"))
