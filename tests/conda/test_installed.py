"""The real package, solved and installed from a local channel into an empty prefix, trains a model in a third of the memory.

What comes from other channels is stood in for by stand_ins.py, which names each.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rattler.exceptions import SolverError

from lmsbuild import paths
from lmsbuild.channel import audit, channel
from lmsbuild.conda import package_file
from lmsbuild.trial.trial import OVERSUBSCRIPTION, UNLIMITED, Training, read_trainings
from solving import Environment, install, solve
from stand_ins import EMPTY, OPENMP, PURE_PYTHON, SUBDIR, VERSION, make

TOOL = Path(__file__).parents[2] / "tools/lmsbuild/programs"
MODEL = ("transformer", "4")


def run(environment: Environment, *words: str | Path) -> str:
    command = [environment.prefix / "bin" / words[0], *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, env=environment.variables, check=False)
    if done.returncode:
        pytest.fail(f"{words} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-5000:]}")
    return done.stdout


def train(environment: Environment, folder: Path, *limits: str) -> list[Training]:
    for name in ("models.py", "training.py"):
        shutil.copy(TOOL / name, folder)
    shutil.copy(TOOL / "training_pytorch.py", folder / "backend.py")
    return read_trainings(run(environment, "python", folder / "training.py", *MODEL, *limits), len(limits))


def test_all_that_it_requires_is_installed(environment: Environment) -> None:
    needed = set(PURE_PYTHON) - {"pip"}  # which the tests inside the package require
    assert environment.packages == {"pytorch", "python", *needed, *OPENMP, *EMPTY}


def test_the_channel_is_sound(lms_channel: Path) -> None:
    assert audit.check(lms_channel, paths.recipes_folder()) == 3


def test_model_from_the_prefix(environment: Environment, tmp_path: Path) -> None:
    stock, _, limited = train(environment, tmp_path, "none", str(UNLIMITED), f"1/{OVERSUBSCRIPTION}")
    assert limited.statistics["out.bytes"] > 0
    assert (limited.losses, limited.digest) == (stock.losses, stock.digest)


def test_it_is_the_prefix_that_runs(environment: Environment) -> None:
    program = (
        "import sys, torch, sympy; print(sys.prefix, torch.__file__, sympy.__file__, torch.__version__, sep='\\n')"
    )
    found, torch, sympy, version = run(environment, "python", "-c", program).splitlines()
    packages = environment.prefix / f"lib/python{VERSION}/site-packages"
    assert (found, torch, sympy) == (
        str(environment.prefix),
        str(packages / "torch/__init__.py"),
        str(packages / "sympy/__init__.py"),
    )
    assert version == "2.13.0+cpu.lms1"


def test_pip_sees_the_package(environment: Environment) -> None:
    """So that packages which pip installs later find it."""
    program = (
        "from importlib.metadata import distribution as d; print(d('torch').version, d('torch').read_text('INSTALLER'))"
    )
    assert run(environment, "python", "-c", program).split() == ["2.13.0+cpu.lms1", "conda"]


def test_command_of_the_package(environment: Environment) -> None:
    assert "--nproc" in run(environment, "torchrun", "--help")
    assert str(environment.prefix) not in (environment.prefix / "bin/torchrun").read_text()


MAPPED = """
import numpy, sympy, torch
torch.ones(1 << 20).sum()
names = {line.split(None, 5)[-1].strip() for line in open("/proc/self/maps") if ".so" in line}
print(*sorted(name for name in names if any(part in name.rpartition("/")[2] for part in ("gomp", "omp5", "libomp"))), sep="\\n")
"""


def test_one_openmp_runtime(environment: Environment) -> None:
    """That of the environment, whoever loads it first."""
    own = str((environment.prefix / "lib/libgomp.so.1").resolve())
    assert run(environment, "python", "-c", MAPPED).split() == [own]


def test_libraries_for_compilers(environment: Environment, tmp_path: Path) -> None:
    """A program in C++, compiled against the headers and libraries of the environment, loads those of the package."""
    torch = environment.prefix / f"lib/python{VERSION}/site-packages/torch"
    source = tmp_path / "program.cc"
    source.write_text(
        "#include <ATen/ATen.h>\n#include <cstdio>\n"
        'int main() { std::printf("%g", at::ones({1 << 16}).sum().item<double>()); }\n'
    )
    words: list[str | Path] = [
        "g++",
        "-std=c++20",
        "-O0",
        source,
        "-o",
        tmp_path / "program",
        f"-isystem{torch / 'include'}",
    ]
    words += [f"-L{environment.prefix / 'lib'}", f"-Wl,-rpath,{environment.prefix / 'lib'}", "-ltorch_cpu", "-lc10"]
    subprocess.run(words, check=True)
    printed = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True, env={}).stdout
    assert printed == "65536"


def test_tests_inside_the_package(built_package: Path) -> None:
    names = {member.name for member in package_file.members(built_package)}
    assert any(name.endswith("pytorch/0/paging.py") for name in names)


@pytest.fixture
def addresses(lms_channel: Path, other_channel: Path) -> Iterator[list[str]]:
    """The channels as an ordinary web server serves folders."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            served.append(format % arguments)

    served: list[str] = []
    folder = os.path.commonpath([lms_channel, other_channel])
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        root = f"http://127.0.0.1:{server.server_port}"
        try:
            yield [f"{root}/{path.relative_to(folder)}" for path in (lms_channel, other_channel)]
        finally:
            server.shutdown()
            thread.join()
    assert any("repodata.json" in line and " 200 " in line for line in served)


def test_over_http(addresses: list[str], built_package: Path, tmp_path: Path) -> None:
    """All is solved; a small package is installed."""
    records = {record.name.normalized: record for record in solve(*addresses)}
    assert str(records["pytorch"].url) == f"{addresses[0]}/{SUBDIR}/{built_package.name}"
    install([records["filelock"]], tmp_path / "env", tmp_path / "cache")
    assert (tmp_path / f"env/lib/python{VERSION}/site-packages/filelock/__init__.py").is_file()


def test_our_build_is_preferred(lms_channel: Path, other_channel: Path, tmp_path: Path) -> None:
    """By the channel's place where priority is strict, else by the build number; without track_features."""
    theirs = tmp_path / "theirs"
    versions = [("2.13.0", "cpu_generic_py311_h1_3"), ("2.14.1", "cpu_generic_py311_h2_0")]
    packages = [make(tmp_path, "pytorch", version, build) for version, build in versions]
    channel.publish(theirs, packages[:1])

    def chosen(*channels: Path, strict: bool, spec: str = "pytorch") -> str:
        records = solve(*(folder.as_uri() for folder in channels), specs=(spec,), strict=strict)
        return next(f"{record.version} {record.build}" for record in records if record.name.normalized == "pytorch")

    ours = f"2.13.0 cpu_py{VERSION.replace('.', '')}_lms1_1100"
    assert chosen(theirs, lms_channel, other_channel, strict=False) == ours
    channel.publish(theirs, packages[1:])
    assert chosen(lms_channel, theirs, other_channel, strict=True) == ours
    assert chosen(theirs, lms_channel, other_channel, strict=True) == " ".join(versions[1])
    assert chosen(theirs, lms_channel, other_channel, strict=False, spec="pytorch * *lms1*") == ours


def test_no_second_copy_of_the_libraries(lms_channel: Path, other_channel: Path, tmp_path: Path) -> None:
    """What requires libtorch gets the one that is part of the package, also from a client whose priority is not strict."""
    theirs = [make(tmp_path, "libtorch", "2.13.0"), make(tmp_path, "torchvision", "0.28", depends=["libtorch"])]
    channel.publish(tmp_path / "theirs", theirs)
    channels = [folder.as_uri() for folder in (lms_channel, tmp_path / "theirs", other_channel)]
    for strict in (True, False):
        records = solve(*channels, specs=("pytorch", "torchvision"), strict=strict)
        (libtorch,) = (record for record in records if record.name.normalized == "libtorch")
        assert str(libtorch.url).startswith(channels[0]), libtorch.url
    with pytest.raises(SolverError, match="libtorch"):
        solve(*channels, specs=("pytorch", "libtorch * 0"), strict=False)
