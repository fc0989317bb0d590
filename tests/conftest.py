"""The patched wheel, built once a session with the tool itself, and an environment that has it installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

TAG = "v2.13.0"
NEEDS = ("numpy", "expecttest", "setuptools")  # of the programs that run with the patched wheel


def run_tool(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs the tool that is installed beside the running interpreter."""
    words = [str(Path(sys.executable).with_name("lmsbuild")), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        pytest.fail(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


@pytest.fixture(scope="session")
def built_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The patched wheel of the running interpreter. Base wheels are cached where LMSBUILD_CACHE says."""
    output = tmp_path_factory.mktemp("dist")
    done = run_tool("pytorch", TAG, "--output", output)
    wheel = Path(done.stdout.strip())
    assert wheel.parent == output
    return wheel


@pytest.fixture(scope="session")
def lms_python(built_wheel: Path, pytestconfig: pytest.Config) -> Path:
    """The interpreter of an environment with the patched wheel, and what its tests need, installed.

    Kept in pytest's cache folder until the wheel changes.
    """
    digest = hashlib.sha256(built_wheel.read_bytes() + " ".join((sys.version, *NEEDS)).encode()).hexdigest()[:16]
    kept = _environments(pytestconfig)
    folder = kept / digest
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(kept)
        kept.mkdir()
        venv.create(folder, with_pip=True, symlinks=True)
        words = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        subprocess.run([*words, built_wheel, *NEEDS], check=True, env=_clean_environment())
        (folder / "complete").touch()
    return python


def _environments(config: pytest.Config) -> Path:
    cache = config.cache
    assert cache is not None
    return Path(cache.mkdir("lms-environments"))


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
