"""The tool as a user has it: installed from its own wheel, with no checkout in sight."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from lmsbuild import catalogue, paths
from workshop import Workshop

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `lmsbuild` command of an environment into which the tool's own wheel was installed."""
    folder = tmp_path_factory.mktemp("installed")
    pip = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
    environment = _environment()
    subprocess.run(
        [sys.executable, *pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheels", ROOT],
        check=True,
        env=environment,
        cwd=folder,
    )
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    python = folder / "venv/bin/python"
    subprocess.run([python, *pip, "install", "--quiet", *(folder / "wheels").iterdir()], check=True, env=environment)
    return python.with_name("lmsbuild")


def _files(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _run(installed: Path, folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed, *words], capture_output=True, text=True, cwd=folder, env=_environment(), check=False
    )


def test_the_patches_travel_inside_it(installed: Path, tmp_path: Path) -> None:
    """Sources, tables, series and hooks, each once: a wheel has no links."""
    carried = next(installed.parents[1].rglob("lmsbuild/patches"))
    files = _files(carried)
    assert files == {name for name in _files(PATCHES) if not (PATCHES / name).is_symlink()}
    assert all((carried / name).read_bytes() == (PATCHES / name).read_bytes() for name in files)


def test_it_lists_generates_and_patches_away_from_the_checkout(
    installed: Path, tmp_path: Path, workshop: Workshop, built_wheel: Path
) -> None:
    listed = _run(installed, tmp_path, "list")
    assert listed.returncode == 0
    tags = [f"{tag.framework} {tag.name}" for tag in catalogue.tags(paths.patches_folder())]
    assert [line.split(":")[0] for line in listed.stdout.splitlines() if not line.startswith(" ")] == tags
    unfit = _run(installed, tmp_path, "pytorch", "v2.13.0", "--base-wheel", workshop.base)
    assert unfit.returncode in (15, 16), unfit.stderr  # the stand-in is not the official wheel
    current = _run(installed, tmp_path, "generate", "pytorch:v2.13.0", "--check")
    assert current.returncode == 0, current.stderr


def test_it_builds_the_same_wheel_to_the_byte(installed: Path, tmp_path: Path, built_wheel: Path) -> None:
    """From another installation, into another folder, at another time."""
    done = _run(installed, tmp_path, "pytorch", "v2.13.0")
    assert done.returncode == 0, done.stderr
    made = tmp_path / done.stdout.strip()
    assert made.parent == tmp_path / "dist"
    assert made.read_bytes() == built_wheel.read_bytes()


def test_pip_check_is_content(installed: Path) -> None:
    done = subprocess.run(
        [installed.with_name("python"), "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
