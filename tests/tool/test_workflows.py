"""GitHub's workflows in ci/github: their commands exist, and those that can run here do what the jobs expect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmsbuild.cli import cli

FOLDER = Path(__file__).resolve().parents[2] / "ci/github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yml")}
NOTES = FOLDER / "release_notes.py"
CHANGELOG = """# Changelog

## [Unreleased]

## [0.3.0] - 2026-01-01

### Added

* A thing, see [0.2.0].

## 0.2.0

Another.
"""


def _steps() -> list[dict[str, Any]]:
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    return [step for job in jobs for step in job.get("steps", ())]


def _bash(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],  # as GitHub runs a step
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tools_commands_exist() -> None:
    scripts = [step["run"] for step in _steps() if "run" in step]
    used = {name for script in scripts for name in re.findall(r"\blmsbuild ([a-z-]+)", script)}
    assert used == {"build-all", "channel", "index", "matrix"}
    assert used <= set(cli.commands)


def test_the_plan_is_a_matrix_that_the_build_understands(tmp_path: Path) -> None:
    (plan,) = (step for step in _steps() if step.get("id") == "plan")
    output = tmp_path / "output"
    rows = "--tag pytorch:v2.13.0 --python 3.12"
    assert rows in plan["env"]["ROWS"]  # what is built where nothing is said
    done = _bash(plan["run"], tmp_path, ROWS=rows, GITHUB_OUTPUT=str(output))
    assert done.returncode == 0, done.stderr
    name, _, value = output.read_text().rstrip("\n").partition("=")
    included = json.loads(value)["include"]
    assert (name, len(included)) == ("matrix", 4)
    used = set(re.findall(r"matrix\.(\w+)", (FOLDER / "build.yml").read_text()))
    assert used == {"name", "package", "platform", "python", "tag"} and used <= set(included[0])
    # A filter that fits nothing ends the job.
    assert _bash(plan["run"], tmp_path, ROWS="--python 3.99", GITHUB_OUTPUT=str(output)).returncode != 0


# What the step finds, what it makes a list of, and what belongs there.
HASHED = {
    "build": (
        ("site/index/torch/a+cpu.lms1.whl", "site/channel/linux-64/b.conda", "site/index/index.html"),
        "site",
        ["channel/linux-64/b.conda", "index/index.html", "index/torch/a+cpu.lms1.whl"],
    ),
    "release": (
        ("artifacts/torch-wheel/a+cpu.lms1.whl", "artifacts/Torch-wheel/B.whl", "artifacts/site/index/a.whl"),
        "release",
        ["B.whl", "a+cpu.lms1.whl"],
    ),
}


@pytest.mark.parametrize("workflow", HASHED)
def test_everything_that_is_published_is_in_the_list_of_hashes(workflow: str, tmp_path: Path) -> None:
    there, folder, listed = HASHED[workflow]
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    jobs = WORKFLOWS[workflow]["jobs"].values()
    (step,) = (step for job in jobs for step in job.get("steps", ()) if step.get("id") == "hashes")
    done = _bash(step["run"], tmp_path, LC_ALL="C.UTF-8")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / folder / "SHA256SUMS").read_text()
    assert [line.split("  ")[1] for line in text.splitlines()] == listed
    check = "sha256sum --check --strict SHA256SUMS"
    assert _bash(check, tmp_path / folder).returncode == 0
    (tmp_path / folder / listed[0]).write_text("other")
    assert _bash(check, tmp_path / folder).returncode == 1


def test_nothing_to_publish_is_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    (step,) = (step for step in WORKFLOWS["release"]["jobs"]["release"]["steps"] if step.get("id") == "hashes")
    assert _bash(step["run"], tmp_path).returncode == 0
    assert (tmp_path / "release/SHA256SUMS").read_text() == ""


def test_the_release_is_what_was_hashed() -> None:
    """All of it, after the list is there."""
    steps = WORKFLOWS["release"]["jobs"]["release"]["steps"]
    names = [step.get("id") or step.get("uses") or step["run"] for step in steps]
    hashed, attested, published = names[-3:]
    assert hashed == "hashes" and attested.startswith("actions/attest-build-provenance@")
    assert published.split()[-1] == steps[-2]["with"]["subject-path"] == "release/*"


def _notes(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, NOTES, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("version", "text"), [("v0.3.0", "### Added\n\n* A thing, see [0.2.0].\n"), ("0.2.0", "Another.\n")]
)
def test_release_notes(tmp_path: Path, version: str, text: str) -> None:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    done = _notes(version, "--changelog", tmp_path / "CHANGELOG.md")
    assert (done.returncode, done.stdout) == (0, text)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.4.0", "no section '## 0.4.0', but Unreleased, 0.3.0, 0.2.0"),
        ("Unreleased", "the section of Unreleased is empty"),
    ],
)
def test_a_version_without_notes_is_an_error(tmp_path: Path, version: str, said: str) -> None:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    done = _notes(version, "--changelog", tmp_path / "CHANGELOG.md")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_the_changelog_has_notes_of_the_first_version() -> None:
    done = _notes("0.1.0")
    assert done.returncode == 0 and done.stdout.startswith("The first version.")
