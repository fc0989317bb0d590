"""The tests that the patch adds to PyTorch's own suite, run with the built wheel."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

TEST = Path(__file__).parents[2] / "patches" / "src" / "pytorch" / "test" / "test_lms.py"


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
    on_cpu, on_cuda = expected_tests()
    ran = re.search(r"Ran (\d+) tests", result.stderr)
    assert ran is not None and int(ran[1]) == on_cpu + on_cuda, result.stderr
    assert f"OK (skipped={on_cuda})" in result.stderr  # the wheel has no CUDA


def expected_tests() -> tuple[int, int]:
    """Those for the CPU, those for CUDA. The parametrized tests count once for each of their cases."""
    cpu, cuda = TEST.read_text().split("class TestLargeModelSupportCuda")
    counts = [len(re.findall(r"^    def test_", text, re.MULTILINE)) for text in (cpu, cuda)]
    # training: 2 policies x 2 stores; save and load: 2 formats; wrong arguments: 7 cases
    wrong = len(re.findall(r"^            \((?:TypeError|ValueError), ", cpu, re.MULTILINE))
    return counts[0] - 3 + 4 + 2 + wrong, counts[1] - 1 + 2  # training: 2 policies
