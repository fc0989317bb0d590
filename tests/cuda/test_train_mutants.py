"""Each bug of mutants.toml, one wait, pin or note of a use left out, makes a training program fail (train_programs).

They are built and run before a release: that takes five minutes, and tests the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mutated
import upstream_files
from checks import RUNNER
from operators import build as operators_build

NO_MUTANT = ""
AT_ONCE = 2
KILLERS = {mutant.name: mutant.killed_by for mutant in mutated.mutants()}
# Without a mutant the same build trains.
RUNS = {**KILLERS, NO_MUTANT: "checks_train_streams:check_train_branches_on_streams_of_their_own"}


@pytest.fixture(scope="module")
def build_with_mutants(cuda_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    torch = operators_build.torch_of(cuda_python)
    folder = tmp_path_factory.mktemp("mutants")
    yield mutated.build(torch.tag.name, Path(torch.folder).parent, folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def outcomes(
    build_with_mutants: Path, cuda_python: Path, train_environment: dict[str, str], request: pytest.FixtureRequest
) -> dict[str, dict[str, Any]]:
    """The outcome of every selected mutant's killer, by the mutant's name."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    selected = [item.callspec.params["name"] for item in items if item.originalname == "test_train_mutant"]
    found = os.pathsep.join((str(build_with_mutants), train_environment["PYTHONPATH"]))

    def run(name: str) -> dict[str, Any]:
        words = [cuda_python, RUNNER, *RUNS[name].split(":")]
        environment = {**train_environment, "PYTHONPATH": found, "LMS_MUTANT": name}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        outcome: dict[str, Any] = json.loads(done.stdout)
        return outcome

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(selected, pool.map(run, selected), strict=True))


def test_every_mutant_has_its_place_in_the_sources() -> None:
    """The quick one, for who changes these: without it the build of all of them fails, near the end of a run."""
    files = mutated.mutated_files(upstream_files.TAG)
    assert all(f'lms_test_mutant("{mutant.name}")' in files[mutant.file].decode() for mutant in mutated.mutants())


@pytest.mark.release  # five minutes
@pytest.mark.parametrize("name", RUNS)
def test_train_mutant(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[name]
    if name == NO_MUTANT:
        assert outcome["status"] == "passed", outcome["text"]
    else:
        assert outcome["status"] != "passed", f"{RUNS[name]} trains all the same"
        # The device noticed, or the results are wrong; nothing else went wrong.
        # A mapping may also go in the middle of a kernel.
        signs = ("differ:", "CUDA error", "CUDA_ERROR_", "SIGSEGV", "wait status 11", "wait status 139")
        assert any(sign in outcome["text"] + outcome["status"] for sign in signs), outcome["text"]
