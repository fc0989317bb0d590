"""The patched wheel, built once a session with the tool itself, and an environment that has it installed."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

import durations
import kept
import tiers
import upstream_files
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import download, pip_command
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
GROUPS = Path(tempfile.gettempdir()) / f"lmsbuild-tests-{os.getpid()}.json"  # of the tests, for the processes of `-n 2`
NEEDS = ("numpy", "expecttest", "setuptools")  # of the programs that run with the patched wheel


def pytest_addoption(parser: pytest.Parser) -> None:
    durations.add_option(parser)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    tiers.tell(node, GROUPS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return tiers.scheduler(config, log, GROUPS) if config.getoption("dist") == "load" else None  # as `-n 2` has it


def pytest_unconfigure() -> None:
    GROUPS.unlink(missing_ok=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    tiers.assign(item)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.order(config, items)


def pytest_configure(config: pytest.Config) -> None:
    """Every pip that the tests start retries after network errors, every program can be interrupted, compilers share a cache."""
    # A shell ignores these in what it starts in the background, nohup the last one, and each program inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name, value in pip_command.PATIENCE.items():
        os.environ.setdefault(name, value)
    os.environ.update(kept.compiler_cache())
    config.pluginmanager.register(durations.Durations(config.option.end_after))


def build_wheel(tag: str, framework: str = "pytorch", package: str | None = None) -> Path:
    """The wheel of `tag` that the tool beside the running interpreter builds for it, or has built of the same sources."""
    target = target_for(None)
    found = catalogue.of_package(catalogue.find_tag(paths.patches_folder(), tag, framework), package)
    if target.interpreter not in found.interpreters:
        pytest.skip(f"needs an interpreter that {tag} has an official wheel for, not {target.interpreter}")

    def build(output: Path) -> Path:
        words = [Path(sys.executable).with_name("lmsbuild"), framework, tag, "--output", output]
        words += ["--package", package] if package is not None else []
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"`lmsbuild {framework} {tag}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return Path(done.stdout.strip())

    base = download.fetch(found, target, paths.cache_folder())
    return kept.wheel(f"{found.package}-{tag}-{target.interpreter}", file_sha256(base), build)


@pytest.fixture(scope="session")
def builds() -> Iterator[Builds]:
    """The programs of the pager's CMake project."""
    # In the checkout, so that paths relative to it, and so what ccache keeps, are the same in another one.
    made = Builds(kept.ROOT / ".pytest_cache" / "pager-builds")
    yield made
    made.close()


@pytest.fixture(scope="module")
def built(builds: Builds, request: pytest.FixtureRequest) -> Callable[[str, str], Path]:
    """built(flavour, program): the path of a program of a module whose tests have these parameters; they are built in turn."""
    builds.start_all(request.session.items, request.module)
    return builds.get


@pytest.fixture(scope="session")
def wheel_builder() -> Callable[..., Path]:
    """`build_wheel`, for tests of other tags than those below."""
    return build_wheel


@pytest.fixture(scope="session")
def built_wheel() -> Path:
    """The patched wheel that most tests use."""
    return build_wheel(TAG)


@pytest.fixture(scope="session")
def lms_python(built_wheel: Path) -> Path:
    """An interpreter that has the patched wheel, and what its tests need."""
    return kept.environment("pytorch", [built_wheel], NEEDS)


@pytest.fixture(scope="session")
def cuda_wheel() -> Path:
    """A patched CUDA wheel."""
    return build_wheel(CUDA_TAG)


@pytest.fixture(scope="session")
def cuda_python(cuda_wheel: Path) -> Path:
    """An interpreter that has the patched CUDA wheel and CUDA's libraries, 6 GB; no GPU is needed to import."""
    return kept.environment(f"cuda-{CUDA_TAG}", [cuda_wheel], (*NEEDS, *upstream_files.NEEDS))


@pytest.fixture(scope="session")
def libraries_python(built_wheel: Path) -> Path:
    """An interpreter that has the patched wheel and the libraries of tests/programs, 1.5 GB."""
    if sys.version_info < (3, 11):
        pytest.skip("the libraries of tests/programs need Python 3.11")
    lines = (Path(__file__).parent / "programs" / "requirements.txt").read_text().splitlines()
    return kept.environment("libraries", [built_wheel], [line for line in lines if not line.startswith("#")])


@pytest.fixture(scope="session")
def tensorflow_wheel() -> Callable[[str], Path]:
    """tensorflow_wheel(tag): the patched TensorFlow wheel of the tag."""
    return lambda tag: build_wheel(tag, "tensorflow", "tensorflow-cpu")


@pytest.fixture(scope="session")
def tensorflow_python(tensorflow_wheel: Callable[[str], Path]) -> Callable[[str], Path]:
    """tensorflow_python(tag): the interpreter of an environment with that wheel installed, 1.5 GB."""
    return functools.cache(lambda tag: kept.environment(f"tensorflow-{tag}", [tensorflow_wheel(tag)]))
