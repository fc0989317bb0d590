"""The tool as a user has it: installed from its own wheel, with no checkout in sight."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import kept
from lmsbuild import cli, paths
from lmsbuild.catalogue import catalogue
from lmsbuild.errors import NotACheckout
from lmsbuild.patch.patch import find_patch
from lmsbuild.wheel.wheel import file_sha256
from workshop import Workshop

pytestmark = pytest.mark.build  # installs the tool

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"


@pytest.fixture(scope="module")
def installed() -> Path:
    """The `lmsbuild` command of an environment into which the tool's own wheel was installed, with lmsreplay's needs."""
    (wheel,) = kept.made("tool", _sources(), _pack).glob("*.whl")
    return kept.environment("tool", [wheel], ["lmsbuild[replay]"]).with_name("lmsbuild")


def _pack(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    words = ["wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run([*pip, *words], check=True, env=_environment(), cwd=folder)


def _sources() -> Iterator[str]:
    """The names and hashes of all that is packed, and of what says how."""
    packed = [path for name in ("patches", "recipes", "tools") for path in sorted((ROOT / name).rglob("*"))]
    for path in (*(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")), *packed):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{path.relative_to(ROOT)} {file_sha256(path)}"


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


def _commands(group: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    """The command and all below it, by their names."""
    yield names
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from _commands(command, *names, name)


EXPLAIN = """
import json, sys
from click.testing import CliRunner
from lmsbuild.cli import cli

for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(cli, [*words, "--help"], prog_name="lmsbuild")
    print(json.dumps([done.exit_code, done.output.partition("[")[0]]))
"""


def test_every_command_explains_itself(installed: Path, tmp_path: Path) -> None:
    """Asked by one process, for each takes a second to start."""
    every = list(_commands(cli.cli))
    done = _run(installed.with_name("python"), tmp_path, "-c", EXPLAIN, json.dumps(every))
    assert done.returncode == 0, done.stderr
    expected = [[0, f"{' '.join(['Usage: lmsbuild', *words])} "] for words in every]
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected


@pytest.mark.parametrize("module", ["lmsbuild", "lmsreplay"])
def test_modules_are_commands(installed: Path, tmp_path: Path, module: str) -> None:
    done = _run(installed.with_name("python"), tmp_path, "-m", module, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: python -m {module} ")


def test_it_replays_a_trace_with_the_pager_that_it_carries(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmsreplay import __main__ as replay  # loads SciPy

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where nothing is compiled yet
    trace = tmp_path / "small.trace"
    trace.write_text(_trace(iterations=6, blocks=8))
    python = installed.with_name("python")
    done = _run(python, tmp_path, "-m", "lmsreplay", "replay", trace, "--json", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "cache").rglob("replay-*.so"))
    rows = json.loads((tmp_path / "found.json").read_text())["bytes"]
    assert [row["peak"] for row in rows] == [8 << 20] * 2
    assert all(row["moved"]["iteration"]["mean_in"] > 0 for row in rows)
    for words in _commands(replay.main):
        asked = _run(python, tmp_path, "-m", "lmsreplay", *words, "--help")
        assert asked.returncode == 0, asked.stderr
    drawn = _run(python, tmp_path, "-m", "lmsreplay", "plot", trace)
    assert drawn.returncode == 0, drawn.stderr
    assert {path.name for path in tmp_path.glob("*.png")} == {"small-50.png", "small-33.png"}


def _trace(iterations: int, blocks: int) -> str:
    """A trace in the pager's format: each iteration reads all blocks in order, and writes them in the other order."""
    from lmsreplay.trace import MARKER_BYTES

    size = 1 << 20
    words = [f"a 0 t {block} {size}" for block in range(blocks)]
    for iteration in range(iterations):
        marker = 1000 + iteration
        words += [f"a 0 t {marker} {MARKER_BYTES}", f"f 0 t {marker}"]
        for kind, order in (("r", range(blocks)), ("w", reversed(range(blocks)))):
            for block in order:
                words += ["b 0 t", f"{kind} 0 t {block}", "e 0 t"]
    times = itertools.count(0, 1000)
    return "".join(f"{word.replace(' 0 ', f' {next(times)} ', 1)}\n" for word in words)


def test_the_patches_travel_inside_it(installed: Path, tmp_path: Path) -> None:
    """Sources, tables, series and hooks, each once: a wheel has no links."""
    carried = next(installed.parents[1].rglob("lmsbuild/patches"))
    files = _files(carried)
    assert files == {name for name in _files(PATCHES) if not (PATCHES / name).is_symlink()}
    assert all((carried / name).read_bytes() == (PATCHES / name).read_bytes() for name in files)


def test_it_lists_and_joins_patches_away_from_the_checkout(
    installed: Path, tmp_path: Path, workshop: Workshop, built_wheel: Path
) -> None:
    listed = _run(installed, tmp_path, "list")
    assert listed.returncode == 0
    tags = [f"{tag.framework} {tag.name}" for tag in catalogue.tags(paths.patches_folder())]
    assert [line.split(":")[0] for line in listed.stdout.splitlines() if not line.startswith(" ")] == tags
    unfit = _run(installed, tmp_path, "pytorch", "v2.13.0", "--base-wheel", workshop.base)
    assert unfit.returncode in (15, 16), unfit.stderr  # the stand-in is not the official wheel
    joined = _run(installed, tmp_path, "patches", "--output", tmp_path, "pytorch:v2.13.0")
    assert joined.returncode == 0, joined.stderr
    tag = catalogue.find_tag(paths.patches_folder(), "v2.13.0", "pytorch")
    assert (tmp_path / tag.patch_name).read_bytes() == find_patch(paths.patches_folder(), tag).joined
    for words in ((), ("--check",), ("pytorch:v2.13.0",)):
        refused = _run(installed, tmp_path, "generate", *words)
        assert (refused.returncode, refused.stdout) == (NotACheckout.exit_code, "")
        assert "`pip install -e .` in a checkout" in " ".join(refused.stderr.split())


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
