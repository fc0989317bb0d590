"""Every command in docs/conda.md that can run here, run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import rattler
from packaging.requirements import Requirement

import small_wheels
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.channel import channel
from solving import Environment
from stand_ins import SUBDIR, VERSION, make

PAGE = (Path(__file__).parents[2] / "docs/conda.md").read_text()
TENSORFLOW = "lmsbuild conda tensorflow v2.14.1"
# What the page shows and these tests do not run, and why, or what does.
ELSEWHERE = {
    "pip install '.[conda]'": "the tests' own environment is made with the extra `test`, which includes this one",
    TENSORFLOW: "tests/conda/test_tensorflow.py runs it with a wheel that is there already",
    "lmsbuild conda pytorch v1.13.1 --platform linux-ppc64le": "tests/conda/test_power.py runs it, with --level and "
    "--output",
    "rattler-build build --recipe package/recipe/recipe.yaml": "the program is not in the Python registry; "
    "tests/conda/test_conda.py calls the entry of the library that it calls",
    "conda build package/recipe -m package/recipe/variants.yaml": "conda-build is not in the Python registry",
    "conda config --add channels file:///srv/channel": "conda is not in the Python registry; "
    "tests/conda/test_installed.py solves and installs",
    "conda config --set channel_priority strict": "the same",
    "conda install pytorch": "the same",
    "conda install 'pytorch * *lms1*'": "the same",
    "conda install pytorch torchvision lightning": "tests/conda/test_mixing.py solves it",
    "lmsbuild conda test dist/linux-64/pytorch-2.13.0-cpu_py311_lms1_1100.conda --channel file:///srv/mirror": "there is no such "
    "channel; tests/conda/test_commands.py runs it",
    "conda sigstore attest --target-channel https://example.org/channel --output NAME.conda.sigs NAME.conda": "signs with "
    "an identity that someone logs in with; tests/conda/test_attestations.py publishes what is made like it",
    "conda sigstore verify --bundle NAME.conda.sigs --cert-identity WHO --cert-oidc-issuer URL NAME.conda": "the same",
    "nvidia-smi topo -m": "needs a GPU's driver",
    "horovodrun -np 2 python train.py": "needs Horovod; test_pinned_gradients runs the lines for it",
}
# A text in each of the page's programs, and what runs it.
PROGRAMS = {
    "DistributedDataParallel": "test_distributed",
    "zeros_like": "test_pinned_gradients",
    'enable("cuda", limit=20 << 30)': "tests/cuda/programs/cuda_support.py does it on a simulated GPU",
}
TOOLS = ("conda", "horovodrun", "lmsbuild", "numactl", "nvidia-smi", "pip", "python", "rattler-build", "torchrun")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The commands of the page: those of its shell blocks, one a line, and those inside of sentences."""
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose)]
    inside = [text for text in spans if text.startswith(tuple(f"{tool} " for tool in TOOLS))]
    return [line for block in blocks("sh") for line in block.splitlines()] + inside


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
PUBLISH = "lmsbuild channel publish channel dist/linux-64/*.conda"
BUILT = "pytorch-2.13.0-cpu_py311_lms1_1100.conda"  # as the page calls it
INDEX = "lmsbuild channel publish channel"
CHECK = "lmsbuild channel check channel"
REPAIR = "lmsbuild channel repair channel"
SIGN = (
    "cd channel && sha256sum channeldata.json */*.json */*.zst > SHA256SUMS && "
    "ssh-keygen -Y sign -f ../key -n file SHA256SUMS"
)
VERIFY = (
    "cd channel && ssh-keygen -Y verify -f ../trusted -I publisher -n file -s SHA256SUMS.sig < SHA256SUMS && "
    "sha256sum --check --quiet SHA256SUMS"
)
USE = "python -c \"import torch; torch.lms.enable('cpu', limit=8 << 30); print(torch.lms.is_enabled('cpu'))\""
NUMA = "numactl --cpunodebind=0 --preferred=0 python train.py"
DISTRIBUTED = "torchrun --standalone --nproc-per-node=2 train_ddp.py"
NUMA_EACH = (
    "torchrun --standalone --no-python --nproc-per-node=2 sh -c "
    "'exec numactl --cpunodebind=$LOCAL_RANK python train_ddp.py'"
)
ESTIMATOR = "pip install --no-deps tensorflow-estimator==2.14.0"
TORCHVISION = "pip install --no-deps torchvision==0.28.0"


@runs(BUILD)
def test_build(built_package: Path) -> None:
    """The fixture runs it, with a wheel that is there already and the stand-ins' channel added to the line."""
    assert f"`{BUILT}`" in PAGE
    assert built_package.name == BUILT.replace("py311", f"py{sys.version_info[0]}{sys.version_info[1]}")


@pytest.mark.release  # with small packages other tests do it
@runs(PREPARE)
def test_prepare(built_wheel: Path, tmp_path: Path, tool: dict[str, str]) -> None:
    run(f"{PREPARE} --wheel {built_wheel}", tmp_path, tool)
    assert (tmp_path / "package/recipe/recipe.yaml").is_file() and (tmp_path / "package/tree").is_dir()
    shutil.rmtree(tmp_path / "package")


@pytest.mark.release  # with small packages other tests do it
@runs(PUBLISH)
@runs(INDEX)
@runs(CHECK)
def test_publish_and_check(built_package: Path, tmp_path: Path, tool: dict[str, str]) -> None:
    place = tmp_path / "dist/linux-64"
    place.mkdir(parents=True)
    packages = sorted(built_package.parent.glob("*.conda"))
    for package in packages:
        os.link(package, place / package.name)
    assert run(PUBLISH, tmp_path, tool).splitlines() == [f"linux-64/{package.name}" for package in packages]
    assert run(INDEX, tmp_path, tool) == ""
    assert "3 packages, all as the index says" in run(CHECK, tmp_path, tool)


@runs(REPAIR)
def test_repair(tmp_path: Path, tool: dict[str, str]) -> None:
    """What is bad is where the page says, and the last line is the check's."""
    channel.publish(tmp_path / "channel", [make(tmp_path)])
    (tmp_path / f"channel/{SUBDIR}/bad-1.0-0.conda").write_bytes(b"")
    assert "1 packages, all as the index says" in run(REPAIR, tmp_path, tool).splitlines()[-1]
    assert (tmp_path / f"channel/set-aside/{SUBDIR}/bad-1.0-0.conda").exists()


@runs(SIGN)
@runs(VERIFY)
def test_signed_index(tmp_path: Path, tool: dict[str, str]) -> None:
    """What is signed is trusted as it is, and nothing else."""
    if not shutil.which("ssh-keygen"):
        pytest.skip("needs ssh-keygen, of the Debian package openssh-client")
    channel.publish(tmp_path / "channel", [make(tmp_path)])
    run("ssh-keygen -q -t ed25519 -N '' -f key", tmp_path, tool)
    (tmp_path / "trusted").write_text(f"publisher {(tmp_path / 'key.pub').read_text()}")
    run(SIGN, tmp_path, tool)
    run(VERIFY, tmp_path, tool)
    for name in (f"{SUBDIR}/repodata.json", "SHA256SUMS"):
        with (tmp_path / "channel" / name).open("a") as file:
            file.write(" ")
        assert subprocess.run(VERIFY, shell=True, cwd=tmp_path, env=tool, capture_output=True, check=False).returncode


@runs(USE)
def test_use(environment: Environment, tmp_path: Path) -> None:
    assert run(USE, tmp_path, environment.variables).strip() == "True"


@runs(NUMA)
def test_numa(environment: Environment, tmp_path: Path) -> None:
    if not shutil.which("numactl"):
        pytest.skip("needs numactl, of the Debian package of that name")
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(3).sum().item())\n")
    assert run(NUMA, tmp_path, environment.variables).strip() == "3.0"


def write_distributed(folder: Path) -> None:
    program = next(block for block in blocks("python") if "DistributedDataParallel" in block)
    # One write per line: both processes print into one pipe, and torchrun makes Python write each part on its own.
    # Then _exit, as the page says: on a busy machine stock PyTorch too may abort while the interpreter is finalized.
    program += "os.write(1, f'done {rank}\\n'.encode())\nos._exit(0)\n"
    (folder / "train_ddp.py").write_text(program)


@pytest.mark.release  # test_distributed_with_numactl does it, too
@runs(DISTRIBUTED)
def test_distributed(environment: Environment, tmp_path: Path) -> None:
    write_distributed(tmp_path)
    variables = {**environment.variables, "OMP_NUM_THREADS": "1"}
    assert sorted(run(DISTRIBUTED, tmp_path, variables).split()) == ["0", "1", "done", "done"]


# Notes what it is asked for, and asks the real one for a node that every machine has.
NUMACTL = """#!/bin/sh
echo "$1" >> asked
shift
exec {numactl} --cpunodebind=0 "$@"
"""


@runs(NUMA_EACH)
def test_distributed_with_numactl(environment: Environment, tmp_path: Path) -> None:
    numactl = shutil.which("numactl")
    if not numactl:
        pytest.skip("needs numactl, of the Debian package of that name")
    write_distributed(tmp_path)
    variables = put_first("numactl", NUMACTL.format(numactl=numactl), tmp_path / "bin", environment.variables)
    printed = run(NUMA_EACH, tmp_path, {**variables, "OMP_NUM_THREADS": "1"})
    assert sorted(printed.split()) == ["0", "1", "done", "done"]
    assert sorted((tmp_path / "asked").read_text().split()) == ["--cpunodebind=0", "--cpunodebind=1"]


def put_first(name: str, program: str, folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """The variables of a shell in which `name` is that program."""
    folder.mkdir()
    (folder / name).write_text(program)
    (folder / name).chmod(0o755)
    return {**variables, "PATH": f"{folder}:{variables['PATH']}"}


@contextmanager
def installed(line: str, environment: Environment, folder: Path) -> Iterator[dict[str, str]]:
    """Runs a line for pip, and takes away afterwards what it installed; the environment's variables.

    There is no pip in the environment, so that of the tests installs into it.
    """
    pip = f'#!/bin/sh\nexec {sys.executable} -m pip --python {environment.prefix}/bin/python "$@"\n'
    variables = put_first("pip", pip, folder / "bin", environment.variables)
    packages = environment.prefix / f"lib/python{VERSION}/site-packages"
    before = set(packages.iterdir())
    try:
        run(line, folder, variables)
        yield variables
    finally:
        for path in set(packages.iterdir()) - before:
            shutil.rmtree(path)


ASK = 'python -c "from importlib.metadata import distribution as d; print({})"'


@runs(TORCHVISION)
def test_torchvision_from_pip(environment: Environment, tmp_path: Path) -> None:
    """It is the version for this release, and the package stays."""
    with installed(TORCHVISION, environment, tmp_path) as variables:
        asked = run(ASK.format("d('torch').version, *d('torchvision').requires, sep='\\n'"), tmp_path, variables)
    version, *required = asked.splitlines()
    assert version == "2.13.0+cpu.lms1"
    (wanted,) = (one for one in map(Requirement, required) if one.name == "torch")
    assert str(wanted.specifier) and wanted.specifier.contains(version)


@runs(ESTIMATOR)
def test_estimator_from_pip(environment: Environment, tmp_path: Path) -> None:
    """It is of the release that the page packages."""
    with installed(ESTIMATOR, environment, tmp_path) as variables:
        version = run(ASK.format("d('tensorflow-estimator').version"), tmp_path, variables).strip()
    assert TENSORFLOW.rpartition("v")[2].split(".")[:2] == version.split(".")[:2]


def test_pinned_gradients(environment: Environment, tmp_path: Path) -> None:
    """The lines for Horovod, without Horovod."""
    program = next(block for block in blocks("python") if "zeros_like" in block)
    head = "import torch\nmodel = torch.nn.Linear(512, 512)\ntorch.lms.enable('cpu', limit=1 << 30)\n"
    (tmp_path / "train.py").write_text(f"{head}{program}print('ran')\n")
    assert run("python train.py", tmp_path, environment.variables).strip() == "ran"


def test_every_command_is_run_or_known_to_run_elsewhere() -> None:
    assert set(commands()) == set(RUNNERS) | set(ELSEWHERE)
    assert not set(RUNNERS) & set(ELSEWHERE)


def test_every_program_is_run_or_known_to_run_elsewhere() -> None:
    found = [[text for text in PROGRAMS if text in block] for block in blocks("python")]
    assert sorted(found) == sorted([text] for text in PROGRAMS)


def test_the_places_that_run_the_rest_exist() -> None:
    named = re.findall(r"tests/[\w/]+\.py", " ".join((*ELSEWHERE.values(), *PROGRAMS.values())))
    assert len(named) == 8
    assert all((Path(__file__).parents[2] / name).is_file() for name in named)


def records(folder: Path) -> dict[str, rattler.PackageRecord]:
    """What the page's first command makes of the release's official wheels, with CUDA and without."""
    tag = catalogue.find_tag(paths.patches_folder(), BUILD.split()[-1], "pytorch")
    made = {}
    for name, local, files in (("cuda", "", {"torch/lib/libc10_cuda.so": b""}), ("cpu", "cpu.", {})):
        version = f"{tag.version}+{local}lms1"
        found = small_wheels.variants(
            small_wheels.write(folder, version=version, abi="cp311", files=files, cuda=tag.cuda)
        )
        index = {"name": "pytorch", "version": found["version"], "build": found["build_string"], "depends": []}
        (folder / "index.json").write_text(
            json.dumps({**index, "build_number": int(found["number"]), "subdir": SUBDIR})
        )
        made[name] = rattler.PackageRecord.from_index_json(folder / "index.json")
    return made


def test_specifications(tmp_path: Path) -> None:
    """Each matches a package that the tool makes, and one that names a CUDA version only that for CUDA."""
    written = re.findall(r"[`'](pytorch [^`'|]*)[`']", PAGE)
    assert "pytorch * *lms1*" in written
    made = records(tmp_path)
    for text in written:
        specification = rattler.MatchSpec(text, strict=True)
        matched = [name for name, record in made.items() if specification.matches(record)]
        assert matched == (["cuda"] if "cuda" in text else ["cuda", "cpu"]), text
    assert sum("cuda" in text for text in written) == 1
    cpu = made["cpu"]
    assert f"{cpu.name.normalized}-{cpu.version}-{cpu.build}.conda" == BUILT
