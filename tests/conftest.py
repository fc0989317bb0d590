"""The patched wheel, built once a session with the tool itself, and an environment that has it installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import xdist
from filelock import FileLock
from xdist.scheduler import LoadScopeScheduling

import upstream_files
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import pip_command
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import file_sha256
from presets import Builds

TAG = "v2.13.0"
# Whose official wheel is a CUDA build. With another than the one whose files tests/upstream has, run `-k train`.
CUDA_TAG = os.environ.get("LMS_TEST_CUDA_TAG", upstream_files.TAG)
# The same examples in every run; `--hypothesis-profile random` looks for others. A slow machine is no failure.
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.register_profile("repeatable", hypothesis.settings.get_profile("random"), derandomize=True)
hypothesis.settings.load_profile("repeatable")
NEEDS = ("numpy", "expecttest", "setuptools")  # of the programs that run with the patched wheel


FIRST = ("tests/cuda/", "tests/pager/", "tests/replay/", "tests/upstream/")
# Files that take minutes, and share what they need with no other file, or with the other process (`_once`).
EITHER = (
    "tests/conda/test_bad_packages.py",
    "tests/conda/test_other_machines.py",
    "tests/cuda/test_predictions.py",
    "tests/e2e/test_releases.py",
    "tests/hostile/test_hostile.py",
    "tests/programs/test_programs.py",
    "tests/tool/test_build_all.py",
    "tests/tool/test_cuda_wheels.py",
    "tests/tool/test_foreign_code.py",
    "tests/tool/test_headers.py",
    "tests/tool/test_interrupt.py",
    "tests/tool/test_malformed_wheel.py",
    "tests/tool/test_sentences.py",
)


class Halves(LoadScopeScheduling):  # type: ignore[misc]
    """With `-n 2`: tests of the device and of the pager in one process, most others in another.

    Those of EITHER come last, a file at a time, in whichever process is done: so both end at much the same time. Wheels and
    environments that both need are made once, what else a session makes once in each.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file in EITHER:
            return file
        return "first" if file.startswith(FIRST) else "others"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Halves:
    return Halves(config, log)


def pytest_configure() -> None:
    """Every pip that the tests start waits out a hiccup of the network, and every program can be interrupted."""
    # A shell ignores these in what it starts in the background, nohup the last one, and each program inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name, value in pip_command.PATIENCE.items():
        os.environ.setdefault(name, value)


def build_wheel(tag: str, output: Path, framework: str = "pytorch", package: str | None = None) -> Path:
    """Has the tool that is installed beside the running interpreter build the wheel of `tag` for it.

    Base wheels are cached where LMSBUILD_CACHE says.
    """
    python = target_for(None).interpreter
    found = catalogue.find_tag(paths.patches_folder(), tag, framework)
    if package is not None:
        found = catalogue.of_package(found, package)
    if python not in found.interpreters:
        pytest.skip(f"needs an interpreter that {tag} has an official wheel for, not {python}")
    words = [Path(sys.executable).with_name("lmsbuild"), framework, tag, "--output", output]
    words += ["--package", package] if package is not None else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"`lmsbuild {framework} {tag}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    wheel = Path(done.stdout.strip())
    assert wheel.parent == output
    return wheel


@pytest.fixture(scope="session")
def builds(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    """The programs of the pager's CMake project, kept in pytest's cache folder."""
    cache = pytestconfig.cache
    made = Builds(Path(cache.mkdir("pager-builds")) if cache is not None else tmp_path_factory.mktemp("pager-builds"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def wheel_builder() -> Callable[[str, Path], Path]:
    """`build_wheel`, for tests of other tags than those below."""
    return build_wheel


@pytest.fixture(scope="session")
def built_wheel(request: pytest.FixtureRequest) -> Path:
    """The patched wheel that most tests use."""
    return _once(request, f"pytorch-{TAG}", lambda output: build_wheel(TAG, output))


@pytest.fixture(scope="session")
def lms_python(built_wheel: Path, pytestconfig: pytest.Config) -> Path:
    """An interpreter that has the patched wheel, and what its tests need."""
    return _kept_environment(pytestconfig, "lms-environments", TAG, built_wheel, NEEDS)


@pytest.fixture(scope="session")
def cuda_wheel(request: pytest.FixtureRequest) -> Path:
    """A patched CUDA wheel."""
    return _once(request, f"pytorch-{CUDA_TAG}", lambda output: build_wheel(CUDA_TAG, output))


@pytest.fixture(scope="session")
def cuda_python(cuda_wheel: Path, pytestconfig: pytest.Config) -> Path:
    """An interpreter that has the patched CUDA wheel and CUDA's libraries, 6 GB; no GPU is needed to import."""
    needs = (*NEEDS, *upstream_files.NEEDS)
    return _kept_environment(pytestconfig, "lms-cuda-environments", CUDA_TAG, cuda_wheel, needs)


@pytest.fixture(scope="session")
def libraries_python(built_wheel: Path, pytestconfig: pytest.Config) -> Path:
    """An interpreter that has the patched wheel and the libraries of tests/programs, 1.5 GB."""
    if sys.version_info < (3, 11):
        pytest.skip("the libraries of tests/programs need Python 3.11")
    lines = (Path(__file__).parent / "programs" / "requirements.txt").read_text().splitlines()
    needs = tuple(line for line in lines if not line.startswith("#"))
    return _kept_environment(pytestconfig, "lms-library-environments", TAG, built_wheel, needs)


@pytest.fixture(scope="session")
def tensorflow_wheel(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """tensorflow_wheel(tag): the patched TensorFlow wheel of the tag."""

    def wheel_of(tag: str) -> Path:
        return _once(
            request, f"tensorflow-{tag}", lambda output: build_wheel(tag, output, "tensorflow", "tensorflow-cpu")
        )

    return wheel_of


@pytest.fixture(scope="session")
def tensorflow_python(tensorflow_wheel: Callable[[str], Path], pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """tensorflow_python(tag): the interpreter of an environment with that wheel installed, 1.5 GB."""
    known: dict[str, Path] = {}

    def python_of(tag: str) -> Path:
        if tag not in known:
            wheel = tensorflow_wheel(tag)
            known[tag] = _kept_environment(pytestconfig, "lms-tensorflow-environments", tag, wheel)
        return known[tag]

    return python_of


def _once(request: pytest.FixtureRequest, name: str, build: Callable[[Path], Path]) -> Path:
    """The wheel that build(folder) makes, built by whichever process needs it first.

    It goes, or stays after a failure, with the session's other files.
    """
    base = request.getfixturevalue("tmp_path_factory").getbasetemp()
    folder: Path = (base.parent if xdist.is_xdist_worker(request) else base) / "wheels" / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        known = list(folder.glob("*.whl"))
        return known[0] if known else build(folder)


def _kept_environment(config: pytest.Config, kind: str, name: str, wheel: Path, needs: tuple[str, ...] = ()) -> Path:
    """The interpreter of an environment with a wheel, and what it requires, installed.

    Kept in pytest's cache folder; when the wheel changes it alone is installed again.
    """
    cache = config.cache
    assert cache is not None
    folder = Path(cache.mkdir(kind)) / f"{name}-{sys.implementation.cache_tag}"
    python, complete = folder / "bin" / "python", folder / "complete"
    wanted = " ".join((file_sha256(wheel), sys.version, *needs))
    with FileLock(folder.with_suffix(".lock")):  # both processes of `-n 2` may want it
        installed = complete.read_text() if complete.exists() else ""
        if installed == wanted:
            return python
        pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
        environment = _clean_environment()
        if installed:
            complete.unlink()
            subprocess.run([*pip, "--no-deps", "--force-reinstall", wheel], check=True, env=environment)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True, symlinks=True)
        subprocess.run([*pip, wheel, *needs], check=True, env=environment)
        complete.write_text(wanted)
    return python


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
