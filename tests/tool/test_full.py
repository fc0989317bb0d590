"""`--mode full` on a stand-in for the framework, whose setup.py really compiles and packs a wheel with bdist_wheel."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import sboms
import synthetic
import upstream
from lmsbuild import paths
from lmsbuild.errors import (
    BuildFailed,
    BuildNotReady,
    BuildUnfinished,
    NoSpace,
    SourceUnreachable,
    WrongCommit,
)
from lmsbuild.full import plan
from lmsbuild.wheel.wheel import WheelFile
from row_shop import runs
from upstream import TAG, Upstream, git
from workshop import DRIVE, Workshop

pytestmark = pytest.mark.build  # builds in processes of their own

# Compiles one file of the patch and one of a submodule. "mark" files let a test see what ran, and hold it up.
SETUP = """\
import os, pathlib, subprocess, sys, time
from setuptools import Extension, find_packages, setup

marks = pathlib.Path(os.environ["USE_MARKS"])
(marks / ("jobs-" + os.environ["MAX_JOBS"])).touch()

def compile(source, target):
    if os.path.exists(target):
        print("up to date:", target)
        return
    with (marks / "compiled").open("a") as file:
        file.write(source + "\\n")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    compiler = os.environ.get("CXX", "c++").split()
    subprocess.check_call(compiler + ["-Iaten/src", "-Ithird_party/part", "-fPIC", "-c", source, "-o", target])

compile("first.cpp", "build/first.o")
(marks / "process").write_text(str(os.getpid()))
(marks / "first-done").touch()
while (marks / "wait").exists():
    time.sleep(0.05)
compile("aten/src/ATen/LmsPager.cpp", "build/pager.o")
subprocess.check_call(["c++", "-shared", "-o", "torch/libtorch.so", "build/first.o", "build/pager.o"])
setup(
    name="torch",
    version=os.environ["PYTORCH_BUILD_VERSION"],
    packages=find_packages(include=["torch*"]),
    package_data={"torch": ["*.so"]},
    has_ext_modules=lambda: True,
)
"""
FIRST = b'#include "part.h"\nint first() { return 1; }\n'
FULL = """\
programs = ["git"]
modules = ["setuptools"]
disk = 1
memory = 3
reads = ["CC", "CXX", "CMAKE_", "MAX_JOBS", "PYTORCH_BUILD_NUMBER", "PYTORCH_BUILD_VERSION", "USE_"]

[[command]]
words = ["{python}", "setup.py", "bdist_wheel"]
leaves = "dist"

[[environment]]
name = "PYTORCH_BUILD_VERSION"
value = "{version}+{label}"
"""


@pytest.fixture
def there(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """The stand-in, whose build writes marks into the folder `marks`."""
    made = upstream.make(workshop, {"setup.py": SETUP.encode(), "first.cpp": FIRST})
    (workshop.patches / "catalogue/pytorch/full.toml").write_text(FULL)
    (workshop.folder / "marks").mkdir()
    for name in [name for name in os.environ if name.startswith(("USE_", "CMAKE_", "PYTORCH_", "MAX_JOBS", "CXX"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("USE_MARKS", str(workshop.folder / "marks"))
    return made


def _build(there: Upstream, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    arguments = ("pytorch", TAG, "--mode", "full", "--output", there.workshop.output, *words)
    return there.run(*arguments, environment={**there.environment, **variables})


def _marks(there: Upstream) -> Path:
    return there.workshop.folder / "marks"


def _folder(there: Upstream) -> Path:
    return there.workshop.output / f"build-pytorch-{TAG}-{synthetic.TARGET.interpreter}"


def _compiled(there: Upstream) -> list[str]:
    return (_marks(there) / "compiled").read_text().split()


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith((".py", "METADATA"))}


def test_a_wheel_is_built_from_source(there: Upstream) -> None:
    done = _build(there, "--jobs", "3")
    assert done.returncode == 0, done.stderr
    wheel = Path(done.stdout.strip())
    assert wheel.parent == there.workshop.output
    assert wheel.name.startswith("torch-2.13.0+lms1-")
    contents = _contents(wheel)
    assert contents["torch/lms/__init__.py"] == b"def enable():\n    pass\n"
    assert b'"lms",' in contents["torch/__init__.py"]
    assert (_marks(there) / "jobs-3").exists()
    assert git(_folder(there) / "source", "rev-parse", f"{TAG}^{{commit}}").strip() == there.commit
    assert not list(there.workshop.output.glob(".lmsbuild-*"))
    parts = sboms.of_wheel(wheel).parts()
    assert set(parts) == {"pytorch", "large-model-support", "C++ compiler", "lmsbuild"}
    assert sboms.properties(parts["pytorch"]) == {"commit": there.commit}
    assert sboms.sha256(parts["large-model-support"]) == there.workshop.patch.digest
    with WheelFile(wheel) as file:
        assert file.verify(lambda name: None, lambda done: None) == {}


def _by_hand(there: Upstream, lines: str) -> subprocess.CompletedProcess[str]:
    """Runs the lines of a plan in a shell, with a program `lmsbuild` that knows the stand-in's tags."""
    program = there.workshop.folder / "programs/lmsbuild"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{DRIVE}" "{there.workshop.patches}" 0 - "$@"\n')
    program.chmod(0o755)
    variables = {"PATH": f"{program.parent}:{os.environ['PATH']}", "LMSBUILD_CACHE": str(there.workshop.cache)}
    return subprocess.run(
        ["bash", "-e"],
        input=lines,
        capture_output=True,
        text=True,
        env={**os.environ, **there.environment, **variables},
        cwd=there.workshop.folder,
        check=False,
    )


def test_the_plan_can_be_run_by_hand(there: Upstream) -> None:
    """Line by line, as printed, in a shell: it makes the wheel that the tool makes."""
    wheel = Path(_build(there).stdout.strip())
    by_tool = _contents(wheel)
    shutil.rmtree(there.workshop.output)
    plain = _build(there, "--dry-run", USE_CUDA="0", USE_NOTE="two words; $HOME")
    assert plain.returncode == 0, plain.stderr
    assert not there.workshop.output.exists(), "a dry run writes nothing"
    assert "USE_CUDA=0" in plain.stdout and "MAX_JOBS=" in plain.stdout
    assert plain.stdout.startswith(f"# pytorch {TAG}")
    done = _by_hand(there, plain.stdout)
    assert done.returncode == 0, done.stderr
    assert _contents(wheel) == by_tool


def test_the_plan_stops_at_a_moved_tag(there: Upstream) -> None:
    plain = _build(there, "--dry-run").stdout
    git(there.repository, "tag", "-f", TAG, "HEAD")
    done = _by_hand(there, plain)
    assert done.returncode == WrongCommit.exit_code, done.stderr
    assert not list(there.workshop.output.glob("*.whl"))
    assert not (_marks(there) / "compiled").exists()


def test_the_plan_shows_no_password(there: Upstream) -> None:
    plain = _build(there, "--dry-run", "--source", "https://ada:secret@nowhere.invalid/x")
    assert "--source 'https://ada:***@nowhere.invalid/x' --whole" in plain.stdout
    assert "secret" not in plain.stdout + plain.stderr


def test_a_failing_build_is_said_and_can_be_resumed(there: Upstream) -> None:
    broken = 'int main() { return "no number"; }\n'
    (there.repository / "first.cpp").write_text(broken)
    git(there.repository, "commit", "-qam", "broken")
    git(there.repository, "tag", "-f", TAG, "HEAD")
    commit = git(there.repository, "rev-parse", "HEAD").strip()
    synthetic.edit_file(
        there.workshop.patches / "catalogue/pytorch/tags.toml", lambda text: text.replace(there.commit, commit)
    )
    done = _build(there)
    log = _folder(there) / "build.log"
    assert done.returncode == BuildFailed.exit_code, done.stderr
    assert "first.cpp:1:" in done.stderr and "error:" in done.stderr
    assert "ended with 1: first.cpp:1:" in done.stderr
    assert str(log) in done.stderr and "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in log.read_text(), "all that the build said is in the log"
    assert not list(there.workshop.output.glob("*.whl"))
    (_folder(there) / "source/first.cpp").write_bytes(FIRST)
    again = _build(there)
    assert again.returncode == BuildUnfinished.exit_code, again.stderr
    assert "--resume" in again.stderr
    resumed = _build(there, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "source: done before" in resumed.stderr and "patch: done before" in resumed.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.release), signal.SIGKILL]
)
def test_an_interrupted_build_goes_on_where_it_was(there: Upstream, number: signal.Signals) -> None:
    (_marks(there) / "wait").touch()
    words = ["pytorch", TAG, "--mode", "full", "--output", str(there.workshop.output)]
    process = subprocess.Popen(
        [sys.executable, DRIVE, there.workshop.patches, "0", "-", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **there.environment, "LMSBUILD_CACHE": str(there.workshop.cache)},
    )
    with process:
        _wait_for(_marks(there) / "first-done")
        second = _build(there, "--resume")
        assert second.returncode == BuildUnfinished.exit_code, second.stderr
        assert "another run builds" in second.stderr
        process.send_signal(number)
        process.wait(120)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert number == signal.SIGKILL or not runs(int((_marks(there) / "process").read_text()))
    (_marks(there) / "wait").unlink()
    assert not list(there.workshop.output.glob("*.whl"))
    shutil.rmtree(there.repository)
    done = _build(there, "--resume", USE_NOTHING="")
    assert done.returncode == BuildUnfinished.exit_code, done.stderr
    assert "was begun with USE_NOTHING not set" in done.stderr
    done = _build(there, "--resume")
    assert done.returncode == 0, done.stderr
    assert _compiled(there).count("first.cpp") == 1, "what was compiled is not compiled again"
    assert Path(done.stdout.strip()).is_file()


@pytest.mark.parametrize("spoil", ["patch", "source", "submodule", "wheel"])
def test_a_stamp_that_does_not_hold_is_no_stamp(there: Upstream, spoil: str) -> None:
    assert _build(there).returncode == 0
    tree = _folder(there) / "source"
    if spoil == "patch":
        (tree / "torch/lms/__init__.py").write_text("other\n")
    elif spoil == "source":
        git(tree, "checkout", "-q", "--orphan", "other")
        git(tree, "commit", "-qm", "other")
    elif spoil == "submodule":
        git(tree, "submodule", "deinit", "--force", "third_party/part")
    else:
        next((tree / "dist").glob("*.whl")).write_bytes(b"half")
    for wheel in there.workshop.output.glob("*.whl"):
        wheel.unlink()
    done = _build(there, "--resume")
    assert done.returncode == 0, done.stderr
    kept = {"patch": ["source"], "wheel": ["source", "patch"]}.get(spoil, [])
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines() if "done before" in line] == kept
    contents = _contents(Path(done.stdout.strip()))
    assert contents["torch/lms/__init__.py"] == b"def enable():\n    pass\n"
    again = _build(there, "--resume")
    assert again.returncode == 0
    assert again.stderr.count("done before") == 3


def test_a_build_that_ran_out_of_memory_is_told_from_others(there: Upstream) -> None:
    compiler = there.workshop.folder / "compiler"
    compiler.write_text("#!/bin/sh\necho 'c++: fatal error: Killed signal terminated program cc1plus' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    done = _build(there, CXX=str(compiler))
    assert done.returncode == BuildFailed.exit_code, done.stderr
    assert "want of memory" in done.stderr and "--jobs" in done.stderr


def test_a_full_disk_is_said_and_the_build_can_be_resumed(there: Upstream) -> None:
    """On a small file system of our own, on which the tree fits and what is compiled does not."""
    disk = there.workshop.output
    disk.mkdir()
    inside = """
        mount -t tmpfs -o size=1536k tmpfs "$0" || exit 99
        "$@"; code=$?
        test -e "$0"/*.whl && exit 98
        mount -o remount,size=64m "$0" && "$@" --resume || exit 97
        exit $code
    """
    synthetic.edit_file(
        there.workshop.patches / "catalogue/pytorch/full.toml", lambda text: text.replace("disk = 1", "disk = 0")
    )
    compiler = there.workshop.folder / "compiler"
    compiler.write_text(
        '#!/bin/sh\nhead -c 3000000 /dev/zero > build/filler || exit 1\nrm build/filler\nexec c++ "$@"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    words = [sys.executable, DRIVE, there.workshop.patches, "0", "-", "pytorch", TAG, "--mode", "full"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, disk, *words, "--output", disk],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **there.environment,
            "LMSBUILD_CACHE": str(there.workshop.cache),
            "TMPDIR": str(there.workshop.folder),
            "CXX": str(compiler),
        },
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"needs the right to mount, which this machine withholds: {done.stderr.strip()}")
    assert done.returncode == NoSpace.exit_code, done.stderr
    assert "no space left" in done.stderr and "the build says so" in done.stderr


def test_a_log_that_cannot_grow_is_said(there: Upstream) -> None:
    """A limit on the size of files, which strikes the tool itself."""
    assert _build(there, "--jobs", "1").returncode == 0
    next((_folder(there) / "source/dist").glob("*.whl")).unlink()
    program = (
        "import resource, signal, runpy, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    words = [DRIVE, there.workshop.patches, "0", "-", "pytorch", TAG, "--mode", "full", "--resume", "--output"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, there.workshop.output],
        capture_output=True,
        text=True,
        env={**os.environ, **there.environment, "LMSBUILD_CACHE": str(there.workshop.cache)},
        check=False,
    )
    assert done.returncode == NoSpace.exit_code, done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_what_is_missing_is_said_before_anything_starts(there: Upstream) -> None:
    synthetic.edit_file(
        there.workshop.patches / "catalogue/pytorch/full.toml",
        lambda text: (
            text.replace('"git"', '"no-cmake"')
            .replace('"setuptools"', '"no_module"')
            .replace("disk = 1", "disk = 9999999")
        ),
    )
    done = _build(there, CXX="no-compiler")
    assert done.returncode == BuildNotReady.exit_code, done.stderr
    for word in (
        "no-cmake: not installed",
        "pip install no_module",
        "looked for no-compiler",
        "the build takes up to 9999999",
    ):
        assert word in done.stderr
    assert not there.workshop.output.exists()
    plain = _build(there, "--dry-run", CXX="no-compiler")
    assert plain.returncode == 0
    assert "missing: no-cmake" in plain.stderr and plain.stdout.startswith("#")


def test_an_interpreter_that_is_not_there_is_said(there: Upstream) -> None:
    done = _build(there, "--python", "3.99")
    assert done.returncode == BuildNotReady.exit_code, done.stderr
    assert "python3.99: not on the PATH" in done.stderr


def test_no_network_is_said(there: Upstream) -> None:
    done = there.run("pytorch", TAG, "--mode", "full", "--output", there.workshop.output, environment=there.offline)
    assert done.returncode == SourceUnreachable.exit_code, done.stderr
    assert "Debian" not in done.stderr
    assert _build(there, "--resume").returncode == 0, "the next run, with a network, goes on"


def test_options_of_the_other_mode_are_refused(there: Upstream) -> None:
    for words in (["--jobs", "2"], ["--resume"], ["--dry-run"], ["--source", "x"]):
        done = there.run("pytorch", TAG, *words)
        assert done.returncode == 2
        assert "--mode full" in done.stderr
    assert _build(there, "--base-wheel", there.workshop.base).returncode == 2


@pytest.mark.parametrize(("processors", "free", "jobs"), [(4, 64, 4), (64, 64, 21), (16, 2, 1), (2, 7, 2), (8, 0, 1)])
def test_jobs_follow_processors_and_memory(
    there: Upstream, monkeypatch: pytest.MonkeyPatch, processors: int, free: int, jobs: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(processors)))
    monkeypatch.setattr(plan, "memory_available", lambda: free << 30)
    options = plan.Options(there.tag, there.workshop.patches, there.workshop.cache, there.workshop.output)
    made = plan.make(options)
    assert (made.jobs, made.environment["MAX_JOBS"]) == (jobs, str(jobs))
    assert f"{processors} processors and {free} GiB" in made.because
    monkeypatch.setenv("MAX_JOBS", "7")
    assert plan.make(options).jobs == 7


def test_memory_is_read_off_this_machine() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < plan.memory_available() <= total


def test_the_users_settings_of_the_build_are_kept(there: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_BUILD_VERSION", "2.13.0+mine")
    monkeypatch.setenv("CMAKE_BUILD_TYPE", "Debug")
    monkeypatch.setenv("HOME_OF_OTHER_THINGS", "x")
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ccache" else which(name))
    options = plan.Options(there.tag, there.workshop.patches, there.workshop.cache, there.workshop.output)
    found = plan.make(options).environment
    assert found["PYTORCH_BUILD_VERSION"] == "2.13.0+mine"
    assert found["CMAKE_BUILD_TYPE"] == "Debug"
    assert "HOME_OF_OTHER_THINGS" not in found and "CMAKE_CXX_COMPILER_LAUNCHER" not in found


def test_ccache_is_used_when_present(there: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    program = there.workshop.folder / "programs/ccache"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    options = plan.Options(there.tag, there.workshop.patches, there.workshop.cache, there.workshop.output)
    found = plan.make(options).environment
    assert found["CMAKE_C_COMPILER_LAUNCHER"] == found["CMAKE_CXX_COMPILER_LAUNCHER"] == "ccache"
    monkeypatch.setenv("CXX", "ccache g++")
    assert "CMAKE_CXX_COMPILER_LAUNCHER" not in plan.make(options).environment
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", "sccache")
    assert plan.make(options).environment["CMAKE_CXX_COMPILER_LAUNCHER"] == "sccache"


CMAKE = """\
cmake_minimum_required(VERSION 3.5)
project(Classic CXX)
set(CMAKE_CXX_STANDARD 11)
{extensions}
add_library(classic STATIC classic.cpp)
add_subdirectory(part)
"""
CLASSIC = """\
static_assert(__cplusplus == {standard}L, "another standard");
"""


@pytest.mark.parametrize("extensions", ["ON", "OFF"])
@pytest.mark.parametrize("way", ["environment", "definition"])
def test_a_build_that_asks_for_cxx11_gets_cxx14(tmp_path: Path, way: str, extensions: str) -> None:
    """As classic tags do, with a part that is a project of its own; by the variable, or as their setup.py hands it on."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.format(extensions=f"set(CMAKE_CXX_EXTENSIONS {extensions})"))
    (tmp_path / "part").mkdir()
    (tmp_path / "part/CMakeLists.txt").write_text("project(Part CXX)\nadd_library(part STATIC ../classic.cpp)\n")
    file = paths.patches_folder() / "catalogue/pytorch/cxx14.cmake"
    environment = {name: value for name, value in os.environ.items() if name != "CMAKE_TOOLCHAIN_FILE"}
    for standard, toolchain in ((201103, None), (201402, file)):
        (tmp_path / "classic.cpp").write_text(CLASSIC.format(standard=standard))
        words = ["cmake", "-S", tmp_path, "-B", tmp_path / f"build-{standard}"]
        if toolchain and way == "definition":
            words.append(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")
        elif toolchain:
            environment["CMAKE_TOOLCHAIN_FILE"] = str(toolchain)
        for each in (words, ["cmake", "--build", tmp_path / f"build-{standard}"]):
            done = subprocess.run(each, capture_output=True, text=True, env=environment, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("tag", "classic"), [("v1.4.0", True), ("v2.6.0", False)])
def test_the_plan_of_a_real_tag(tag: str, classic: bool, tmp_path: Path) -> None:
    from lmsbuild.catalogue import catalogue

    patches = paths.patches_folder()
    known = {found.name: found for found in catalogue.tags(patches) if found.framework == "pytorch"}
    made = plan.make(plan.Options(known[tag], patches, tmp_path, tmp_path / "dist"))
    lines = plan.lines(made)
    assert shlex.split(lines[2]) == ["lmsbuild", "source", f"pytorch:{tag}", str(made.tree), "--whole"]
    build = shlex.split(lines[-2])
    assert build[0] == "env" and build[-2:] == ["setup.py", "bdist_wheel"]
    assert f"PYTORCH_BUILD_VERSION={known[tag].version}+lms1" in build and "PYTORCH_BUILD_NUMBER=1" in build
    toolchain = [word.partition("=")[2] for word in build if word.startswith("CMAKE_TOOLCHAIN_FILE=")]
    assert len(toolchain) == classic
    assert all(Path(file).is_file() for file in toolchain)


def _wait_for(file: Path) -> None:
    end = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < end, f"{file.name} never came"
        time.sleep(0.02)
