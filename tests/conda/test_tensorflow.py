"""The conda package of TensorFlow: what differs from that of PyTorch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import small_wheels
from lmsbuild import paths
from lmsbuild.channel import audit, channel
from lmsbuild.conda import package_file, packager, runpath
from lmsbuild.errors import UnknownPackage, WrongVersion
from stand_ins import ABI, TENSORFLOW, VERSION, make_stand_ins

pytestmark = pytest.mark.build  # starts the tool for every package

TAG = "v2.14.1"
RECIPES = paths.recipes_folder()
PACKAGES = f"lib/python{VERSION}/site-packages"
CUDA = (
    "numpy (<2.0.0,>=1.23.5)",
    "nvidia-cublas-cu11 (==11.11.3.6) ; extra == 'and-cuda'",
    "nvidia-nccl-cu11 (==2.16.5) ; extra == 'and-cuda'",
)


def package(wheel: Path, output: Path) -> Path:
    return packager.build(packager.Options(wheel, RECIPES, output, (), test=False, level=1))[0]


def test_package(tmp_path: Path) -> None:
    requires = ["libclang (>=13.0.0)", "ml-dtypes (==0.2.0)", "nvidia-nccl-cu11 (==2.16.5) ; extra == 'and-cuda'"]
    wheel = small_wheels.write_tensorflow(tmp_path, requires=requires)
    built = package(wheel, tmp_path / "dist")
    assert built == tmp_path / f"dist/linux-64/tensorflow-2.14.1-cpu_py{ABI[2:]}_lms1_1100.conda"
    index = package_file.read_description(built)["index"]
    assert (index["name"], index["version"], index["build_number"]) == ("tensorflow", "2.14.1", 1100)
    assert set(index["depends"]) == {
        f"python >={VERSION},<3.{int(VERSION[2:]) + 1}.0a0",
        f"python_abi {VERSION}.* *_{ABI}",
        "__glibc >=2.34,<3.0a0",
        "libgcc",
        "libstdcxx",
        "ml_dtypes ==0.2.0",
    }
    assert index["constrains"] == ["tensorflow-base <0", "libtensorflow_cc <0", "libtensorflow_framework <0"]
    assert index["license"] == "Apache-2.0"
    names = {member.name for member in package_file.members(built)}
    licenses = {name.removeprefix("info/licenses/licenses/") for name in names if name.startswith("info/licenses/")}
    assert licenses == {"LICENSE-large-model-support", "wheel/LICENSE", "wheel/tensorflow/THIRD_PARTY_NOTICES.txt"}
    # The package tensorboard brings its command itself.
    assert {name for name in names if name.startswith("bin/")} == {"bin/tflite_convert"}
    channel.publish(tmp_path / "channel", [built])
    assert audit.check(tmp_path / "channel", RECIPES) == 1


def test_package_with_cuda(tmp_path: Path) -> None:
    wheel = small_wheels.write_tensorflow(tmp_path, package="tensorflow", cuda="11.8", requires=CUDA)
    recipe = packager.prepare(wheel, RECIPES, tmp_path / "folder")
    described = small_wheels.variants(wheel)
    assert described["build_string"] == f"cuda118_py{ABI[2:]}_lms1_101100"
    assert described["run_cuda_version"] == "cuda-version >=11.8,<12"
    assert (described["run_cudatoolkit"], described["run_nccl"]) == ("cudatoolkit", "nccl >=2.16.5,<3.0a0")
    assert described["run_numpy"] == "numpy >=1.23.5,<2.0.0"
    # Its libraries look into the environment for CUDA's.
    with (recipe.parent / "tree" / PACKAGES / "tensorflow/libtensorflow_framework.so.2").open("rb") as stream:
        elf = runpath.read(stream, "libtensorflow_framework.so.2")
    assert elf is not None and elf.runpath == ("$ORIGIN", "$ORIGIN/../../..")


def test_package_of_2_1(tmp_path: Path) -> None:
    """The framework is in another folder there."""
    built = package(small_wheels.write_tensorflow(tmp_path, version="2.1.0", top="tensorflow_core"), tmp_path / "dist")
    assert built.name == f"tensorflow-2.1.0-cpu_py{ABI[2:]}_lms1_1100.conda"


def test_command(tmp_path: Path) -> None:
    wheel = small_wheels.write_tensorflow(tmp_path)
    words = [sys.executable, "-m", "lmsbuild", "conda"]
    output = ["--wheel", wheel, "--no-test", "--level", "1", "--output", tmp_path / "dist"]
    done = subprocess.run([*words, "tensorflow", "v2.14.1", *output], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).name == f"tensorflow-2.14.1-cpu_py{ABI[2:]}_lms1_1100.conda"
    for asked, failure in (
        (["tensorflow", "v2.21.0"], WrongVersion),
        (["pytorch", "v2.13.0"], WrongVersion),
        (["tensorflow", "v2.14.1", "--package", "torch"], UnknownPackage),
    ):
        done = subprocess.run([*words, *asked, *output], capture_output=True, text=True, check=False)
        assert done.returncode == failure.exit_code, done.stderr


@pytest.mark.release
def test_the_real_package(
    tensorflow_wheel: Callable[[str], Path], tensorflow_python: Callable[[str], Path], tmp_path: Path
) -> None:
    """Solved and installed into an environment of its own, it trains a model in a third of the memory: the test inside it.

    What comes from other channels is stood in for by stand_ins.py, which names each.
    """
    channel.publish(tmp_path / "other", make_stand_ins(tmp_path, tensorflow_python(TAG), TENSORFLOW))
    words = [sys.executable, "-m", "lmsbuild", "conda", "tensorflow", TAG, "--wheel", tensorflow_wheel(TAG)]
    words += ["--channel", (tmp_path / "other").as_uri(), "--level", "1", "--output", tmp_path / "dist"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    built = Path(done.stdout.strip())
    channel.publish(tmp_path / "channel", [built])
    assert audit.check(tmp_path / "channel", RECIPES) == 1
    shutil.rmtree(tmp_path)
