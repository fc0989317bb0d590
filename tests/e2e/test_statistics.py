"""docs/statistics.md documents every statistic that the built wheel has, and no other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "statistics.md"
PROGRAM = "import json, torch; torch.lms.enable('cpu', limit=0); print(json.dumps(list(torch.lms.stats('cpu'))))"


def documented() -> list[str]:
    cells = re.findall(r"^\| (`[^|]+) \|", DOCUMENT.read_text(), re.MULTILINE)
    return [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]


def test_statistics_are_documented(lms_python: Path, tmp_path: Path) -> None:
    result = subprocess.run([str(lms_python), "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, check=True)
    keys = json.loads(result.stdout)
    assert len(set(keys)) == len(keys)
    assert sorted(documented()) == sorted(keys)
