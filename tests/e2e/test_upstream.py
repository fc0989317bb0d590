"""The tests that the patch adds to PyTorch's own suite, run with the built wheel."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

TEST = Path(__file__).parents[2] / "patches" / "pytorch" / "files" / "test" / "test_lms.py"


def test_upstream_style_tests(lms_python: Path, tmp_path: Path) -> None:
    # With CI set, PyTorch's test runner reports through a package of PyTorch's own CI.
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    result = subprocess.run(
        [str(lms_python), str(TEST)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    ran = re.search(r"Ran (\d+) tests", result.stderr)
    assert ran is not None and int(ran[1]) == expected_tests(), result.stderr
    assert "skipped" not in result.stderr


def expected_tests() -> int:
    """The parametrized tests count once for each of their cases."""
    text = TEST.read_text()
    plain = len(re.findall(r"^    def test_", text, re.MULTILINE))
    # training: 2 policies x 2 stores; save and load: 2 formats; wrong arguments: 7 cases
    return plain - 3 + 4 + 2 + len(re.findall(r"^            \((?:TypeError|ValueError), ", text, re.MULTILINE))
