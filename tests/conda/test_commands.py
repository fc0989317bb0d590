"""`lmsbuild conda` as its users call it, where something is not as it should be: it says so at once, and keeps what is good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import small_wheels
from lmsbuild import paths
from lmsbuild.channel import channel
from lmsbuild.conda import package_file, packager
from lmsbuild.errors import (
    ChannelUnreachable,
    CondaBuildFailed,
    ContradictingWheel,
    Failure,
    FolderInUse,
    NoSuchFile,
    UnsolvableTest,
    WrongPlatform,
    WrongVersion,
)
from stand_ins import ABI, VERSION, make

TAG = "v2.13.0"
BUILD = f"cpu_py{ABI[2:]}_lms1_1100"


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmsbuild", "conda", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def refused(done: subprocess.CompletedProcess[str], failure: type[Failure], said: str) -> None:
    assert (done.returncode, done.stdout) == (failure.exit_code, ""), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--platform", "linux-aarch64"], "is for x86_64, --platform is linux-aarch64: leave out one of them"),
        (["--python", "3.9"], f"is for {ABI}, --python is 3.9: leave out one of them"),
    ],
)
def test_a_wheel_for_another_target(options: list[str], said: str, tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path)
    refused(run("pytorch", TAG, "--wheel", wheel, *options, "--output", tmp_path / "dist"), ContradictingWheel, said)
    assert not (tmp_path / "dist").exists()


def test_a_wheel_for_the_target_that_is_named(tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path)
    words = ["--platform", "linux-64", "--python", VERSION, "--no-test", "--level", "1", "--output", tmp_path / "dist"]
    done = run("pytorch", TAG, "--wheel", wheel, *words)
    assert done.stdout.splitlines()[0] == str(tmp_path / f"dist/linux-64/pytorch-2.13.0-{BUILD}.conda"), done.stderr


def test_a_wheel_that_is_not_there(tmp_path: Path) -> None:
    wheel = tmp_path / small_wheels.write(tmp_path).name.replace("cp3", "cp4")
    said = f"there is no wheel {wheel}: build it with `lmsbuild pytorch {TAG}`"
    refused(run("pytorch", TAG, "--wheel", wheel, "--output", tmp_path / "dist"), NoSuchFile, said)


def test_dry_run(tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path, requires=["sympy>=1.13.3"])
    output = tmp_path / "dist"
    done = run("pytorch", TAG, "--wheel", wheel, "--number", "7", "--dry-run", "--output", output)
    build = BUILD.replace("1100", "7")
    said = done.stdout.splitlines()
    files = [f"{name}-2.13.0-{build}.conda" for name in ("pytorch", "libtorch", "pytorch-cpu")]
    assert [line for line in said if "requires" not in line] == [str(output / "linux-64" / name) for name in files], (
        done
    )
    assert said[-1] == f"  requires pytorch ==2.13.0 {build}"
    assert {"  requires sympy >=1.13.3", "  requires numpy >=1.23", "  requires __glibc >=2.34,<3.0a0"} <= set(said)
    # As they are then made.
    options = packager.Options(wheel, paths.recipes_folder(), tmp_path / "made", (), test=False, level=1, number=7)
    for package in packager.build(options):
        needs = package_file.read_description(package)["index"]["depends"]
        at = said.index(str(output / "linux-64" / package.name)) + 1
        assert said[at : at + len(needs)] == [f"  requires {need}" for need in needs]
    done = run("pytorch", TAG, "--python", "3.12", "--dry-run", "--output", output)
    assert (
        f"lmsbuild pytorch {TAG} --python 3.12 --platform linux-64 --output {output}" in done.stdout.splitlines()[0]
    ), done.stderr
    assert "pytorch-2.13.0-*_py312_lms1_*.conda" in done.stdout.splitlines()[1]
    assert not output.exists()


def test_dry_run_without_a_wheel(tmp_path: Path) -> None:
    words = ("--dry-run", "--output", tmp_path / "dist")
    refused(
        run("pytorch", TAG, "--python", "3.9", *words), WrongPlatform, "known for cp39 on x86_64, there are some for"
    )
    done = run("tensorflow", "v2.14.1", "--package", "tensorflow-cpu", "--python", "3.11", *words)
    assert "lmsbuild tensorflow v2.14.1 --python 3.11 --platform linux-64 --package tensorflow-cpu" in done.stdout


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_bases_that_do_not_fit(words: tuple[str, ...], tmp_path: Path) -> None:
    output = ("--output", tmp_path / "dist", *words)
    patched = small_wheels.write(tmp_path)
    refused(run("pytorch", TAG, "--no-test", "--base", patched, *output), WrongVersion, "is patched already")
    said = "--wheel is patched already, and --base is what one is made of: leave out one of them"
    refused(run("pytorch", TAG, "--wheel", patched, "--base", patched, *output), ContradictingWheel, said)
    for name in (f"torch-2.13.0-{ABI}-{ABI}-linux_x86_64.whl", "pytorch-2.13.0-0.conda"):
        base = tmp_path / "none" / name
        refused(run("pytorch", TAG, "--no-test", "--base", base, *output), NoSuchFile, str(base))


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_folder_that_is_none_or_in_use(words: tuple[str, ...], tmp_path: Path) -> None:
    """That is found before the wheel is built."""
    file, full = tmp_path / "file", tmp_path / "full"
    file.write_text("mine")
    full.mkdir()
    (full / "mine").touch()
    refused(run("pytorch", TAG, "--prepare", file, *words), FolderInUse, f"{file} is a file: give a new folder")
    refused(run("pytorch", TAG, "--prepare", full, *words), FolderInUse, f"{full} is not empty: give a new folder")
    assert file.read_text() == "mine" and [path.name for path in full.iterdir()] == ["mine"]


def test_a_channel_that_cannot_be_read(tmp_path: Path) -> None:
    """That is found before the wheel is built, which takes a minute."""
    for name, reason in (("file:///no/such/channel", "No such file"), ("http://127.0.0.1:1/channel", "refused")):
        done = run("pytorch", TAG, "--channel", name, "--output", tmp_path / "dist")
        refused(done, ChannelUnreachable, f"the channel {name} cannot be read (")
        assert reason in done.stderr and "--no-test" in done.stderr and "base wheel" not in done.stderr
    assert not (tmp_path / "dist").exists()


def test_a_channel_without_what_is_required(tmp_path: Path) -> None:
    """The package is kept, untested, and can be tested without building it again."""
    channel.publish(tmp_path / "channel", [make(tmp_path, "other")])
    wheel = small_wheels.write(tmp_path)
    words = ["--channel", str(tmp_path / "channel"), "--level", "1", "--output", tmp_path / "dist"]
    done = run("pytorch", TAG, "--wheel", wheel, *words)
    kept = tmp_path / f"dist/linux-64/pytorch-2.13.0-{BUILD}.conda"
    refused(done, UnsolvableTest, f"`lmsbuild conda test {kept} --channel ...` tests it")
    assert (
        f"cannot be installed from {tmp_path / 'channel'}" in done.stderr and "No candidates were found" in done.stderr
    )
    assert sorted(path.name.split("-2")[0] for path in kept.parent.iterdir()) == ["libtorch", "pytorch", "pytorch-cpu"]
    refused(run("test", kept, "--channel", str(tmp_path / "channel")), UnsolvableTest, "No candidates were found")


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    refused(run("test", tmp_path / "none.conda"), NoSuchFile, f"there is no file {tmp_path / 'none.conda'}")


def test_a_package_without_tests(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    package = make(tmp_path / "packages", "plain", "1.0", subdir="linux-64")
    channel.publish(tmp_path / "channel", [package])
    done = run("test", package, "--channel", tmp_path / "channel")
    assert (done.returncode, done.stdout) == (0, f"{package}: there are no tests in it\n"), done.stderr


def test_a_test_that_fails(other_channel: Path, tmp_path: Path) -> None:
    """There is no package then."""
    words = ["--channel", other_channel.as_uri(), "--level", "1", "--output", tmp_path / "dist"]
    wheel = small_wheels.write(tmp_path, requires=())
    done = run("pytorch", TAG, "--wheel", wheel, *words)
    refused(done, CondaBuildFailed, f"a test inside pytorch-2.13.0-{BUILD}.conda failed: ")
    assert not list((tmp_path / "dist").iterdir())
