"""Every command in docs/conda.md that can run here, run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import rattler

from solving import Environment

PAGE = (Path(__file__).parents[2] / "docs/conda.md").read_text()
# What the page shows in blocks and cannot run here, and why.
ELSEWHERE = {
    "conda config --add channels file:///srv/channel": "conda is not in the Python registry; test_installed.py solves",
    "conda config --set channel_priority strict": "the same",
    "conda install pytorch": "the same",
    "conda install 'pytorch * *lms1*'": "the same",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The commands of the page's shell blocks, one a line."""
    return [line for block in blocks("sh") for line in block.splitlines()]


def run(line: str, folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{line} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


@pytest.fixture
def tool() -> dict[str, str]:
    """The variables of a shell that has lmsbuild."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


RUNNERS: dict[str, Callable[..., None]] = {}


def runs(line: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Names the command that a test runs; it is the page's, to the letter."""
    assert line not in RUNNERS

    def note(test: Callable[..., None]) -> Callable[..., None]:
        RUNNERS[line] = test
        return test

    return note


BUILD = "lmsbuild conda pytorch v2.13.0"
PREPARE = f"{BUILD} --prepare package"
PUBLISH = "lmsbuild channel publish channel dist/linux-64/pytorch-2.13.0-cpu_py311_lms1_1000.conda"
CHECK = "lmsbuild channel check channel"
USE = "python -c \"import torch; torch.lms.enable('cpu', limit=8 << 30); print(torch.lms.is_enabled('cpu'))\""
NUMA = "numactl --cpunodebind=0 --preferred=0 python train.py"
DISTRIBUTED = "torchrun --standalone --nproc-per-node=2 train_ddp.py"


@runs(BUILD)
def test_build(built_package: Path) -> None:
    """The fixture runs it, with a wheel that is there already and the stand-ins' channel added to the line."""
    assert built_package.name == PUBLISH.rpartition("/")[2].replace(
        "py311", f"py{sys.version_info[0]}{sys.version_info[1]}"
    )


@runs(PREPARE)
def test_prepare(built_wheel: Path, tmp_path: Path, tool: dict[str, str]) -> None:
    run(f"{PREPARE} --wheel {built_wheel}", tmp_path, tool)
    assert (tmp_path / "package/recipe/recipe.yaml").is_file() and (tmp_path / "package/tree").is_dir()
    shutil.rmtree(tmp_path / "package")


@runs(PUBLISH)
@runs(CHECK)
def test_publish_and_check(built_package: Path, tmp_path: Path, tool: dict[str, str]) -> None:
    place = tmp_path / PUBLISH.split()[-1]
    place.parent.mkdir(parents=True)
    publish = PUBLISH.replace(place.name, built_package.name)
    os.link(built_package, place.with_name(built_package.name))
    assert run(publish, tmp_path, tool).strip() == f"linux-64/{built_package.name}"
    assert run("lmsbuild channel publish channel", tmp_path, tool) == ""
    assert "1 packages, all as the index says" in run(CHECK, tmp_path, tool)


@runs(USE)
def test_use(environment: Environment, tmp_path: Path) -> None:
    assert run(USE, tmp_path, environment.variables).strip() == "True"


@runs(NUMA)
def test_numa(environment: Environment, tmp_path: Path) -> None:
    if not shutil.which("numactl"):
        pytest.skip("needs numactl, of the Debian package of that name")
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(3).sum().item())\n")
    assert run(NUMA, tmp_path, environment.variables).strip() == "3.0"


@runs(DISTRIBUTED)
def test_distributed(environment: Environment, tmp_path: Path) -> None:
    program = next(block for block in blocks("python") if "DistributedDataParallel" in block)
    # One write per line: both processes print into one pipe, and torchrun makes Python write each part on its own.
    # Then _exit, as the page says: on a busy machine stock PyTorch too may abort while the interpreter is finalized.
    program += "os.write(1, f'done {rank}\\n'.encode())\nos._exit(0)\n"
    (tmp_path / "train_ddp.py").write_text(program)
    variables = {**environment.variables, "OMP_NUM_THREADS": "1"}
    assert sorted(run(DISTRIBUTED, tmp_path, variables).split()) == ["0", "1", "done", "done"]


def test_pinned_gradients(environment: Environment, tmp_path: Path) -> None:
    """The lines for Horovod, without Horovod."""
    program = next(block for block in blocks("python") if "zeros_like" in block)
    head = "import torch\nmodel = torch.nn.Linear(512, 512)\ntorch.lms.enable('cpu', limit=1 << 30)\n"
    (tmp_path / "train.py").write_text(f"{head}{program}print('ran')\n")
    assert run("python train.py", tmp_path, environment.variables).strip() == "ran"


def test_every_command_is_run_or_known_to_run_elsewhere() -> None:
    assert set(commands()) == set(RUNNERS) | set(ELSEWHERE)


def test_specifications() -> None:
    written = re.findall(r"[`']((?:pytorch|libtorch) [^`'|]*)[`']", PAGE)
    assert {"pytorch * *lms1*", "libtorch <0"} < set(written)
    for text in written:
        assert rattler.MatchSpec(text, strict=True).name is not None
