"""The patched CUDA wheels, made on a machine with no CUDA toolkit and no GPU, and one of them installed and imported there."""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import grafted
from lmsbuild import paths
from lmsbuild.catalogue import catalogue, cuda_packages
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.fetch import download
from lmsbuild.graft import graft
from lmsbuild.patch import series
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import WheelFile

PATCHES = paths.patches_folder()
LIBRARIES = {"torch/lib/libtorch_lms.so", "torch/lib/libtorch_lms_cuda.so"}


@dataclass(frozen=True)
class Grafted:
    tag: Tag
    wheel: Path
    base: Path  # the official wheel


@pytest.fixture(
    scope="module",
    params=["cuda_wheel", *(pytest.param(tag, marks=pytest.mark.release) for tag in ("v2.11.0", "v2.15.0"))],
)
def made(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    wheel_builder: Callable[[str, Path], Path],
) -> Iterator[Grafted]:
    """A patched CUDA wheel: the session's own, or one that is removed when its tests are over, for it is large."""
    if request.param == "cuda_wheel":
        wheel: Path = request.getfixturevalue("cuda_wheel")
        yield _grafted(wheel)
        return
    wheel = wheel_builder(request.param)
    yield _grafted(wheel)
    wheel.unlink()


def _grafted(wheel: Path) -> Grafted:
    tag = catalogue.find_tag(PATCHES, parse_name(wheel).version.public, "pytorch")
    return Grafted(tag, wheel, download.fetch(tag, target_for(None), paths.cache_folder()))


def _cuda_version(made: Grafted) -> str:
    with WheelFile(made.wheel) as wheel:
        return graft.cuda_version(wheel, series.read_series(PATCHES, made.tag).graft)


def test_every_file_is_what_its_record_says(made: Grafted) -> None:
    with WheelFile(made.wheel) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_it_differs_from_the_official_wheel_only_where_it_should(made: Grafted) -> None:
    grafted.check_differences(made.wheel, made.base, made.tag, PATCHES, LIBRARIES)


def test_the_version_keeps_the_cuda_version(made: Grafted) -> None:
    stock = grafted.stated_version(made.base)
    assert stock.startswith(f"{made.tag.version}+cu")
    assert grafted.stated_version(made.wheel) == f"{stock}.lms1"
    assert str(parse_name(made.wheel).version) == f"{made.tag.version}+lms1"


def test_the_platform_tag_is_true(made: Grafted, tmp_path: Path) -> None:
    grafted.check_platform(made.wheel, LIBRARIES, tmp_path)


def test_the_libraries_name_no_folder_of_the_build(made: Grafted) -> None:
    grafted.check_names_no_folder(made.wheel, LIBRARIES)


def test_the_libraries_are_hardened(made: Grafted, tmp_path: Path) -> None:
    grafted.check_hardened(made.wheel, LIBRARIES, tmp_path)


def test_the_libraries_need_only_what_is_loaded_with_torch(made: Grafted, tmp_path: Path) -> None:
    with zipfile.ZipFile(made.wheel) as archive:
        plain, with_cuda = (grafted.dynamic(Path(archive.extract(name, tmp_path))) for name in sorted(LIBRARIES))
    runtime = f"libcudart.so.{_cuda_version(made).split('.')[0]}"
    torch = {"libtorch_cpu.so", "libc10.so"}
    assert {name for name in plain["DT_NEEDED"] if "torch" in name or "c10" in name or "cuda" in name} == torch
    own = {name for name in with_cuda["DT_NEEDED"] if "torch" in name or "c10" in name or "cuda" in name}
    assert {"libtorch_lms.so", "libc10_cuda.so"} <= own <= torch | {"libtorch_lms.so", "libc10_cuda.so", runtime}
    assert plain["DT_SONAME"] + with_cuda["DT_SONAME"] == ["libtorch_lms.so", "libtorch_lms_cuda.so"]
    for library in (plain, with_cuda):
        assert [*library.get("DT_RUNPATH", []), *library.get("DT_RPATH", [])] == ["$ORIGIN"]


def test_the_runtime_is_the_one_that_the_wheel_requires(made: Grafted, tmp_path: Path) -> None:
    """Of a requirement on cuda-toolkit the package says which runtime it stands for."""
    with WheelFile(made.wheel) as wheel:
        metadata = wheel.read(f"{wheel.dist_info}/METADATA").decode()
    version = _cuda_version(made)
    required = _required(metadata, "nvidia-cuda-runtime")
    if not required:
        (toolkit,) = _required(metadata, "cuda-toolkit")
        release = catalogue.Release("cuda-toolkit", toolkit, {})
        with WheelFile(download.fetch(release, target_for(None), paths.cache_folder())) as package:
            required = _required(package.read(f"{package.dist_info}/METADATA").decode(), "nvidia-cuda-runtime")
    known = [
        release.version
        for release in cuda_packages.releases(PATCHES, version, target_for(None).machine)
        if "runtime" in release.package
    ]
    assert set(known) == {number.removesuffix(".*") for number in required}


def _required(metadata: str, package: str) -> set[str]:
    """The versions of a package, or of one whose name begins so, that are required exactly."""
    found = set()
    for line in metadata.split("\n\n")[0].splitlines():
        if line.startswith(f"Requires-Dist: {package}") and "==" in line.split(";")[0]:
            found.add(line.split(";")[0].split("==")[1].strip(" ()"))
    return found


PROGRAM = """
import ctypes, os, torch
print(torch.__version__, torch.version.cuda, torch.cuda.is_available())
library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_lms_cuda.so"))
print(bool(library.lms_torch_cuda_enable))
torch.lms.enable("cpu", limit=1 << 20, min_size=4096)
tensors = [torch.full((1 << 16,), float(i)) for i in range(64)]
print(sum(t.sum().item() for t in tensors), torch.lms.stats("cpu")["out.bytes"] > 0)
try:
    torch.lms.enable("cuda", limit=1 << 30)
except RuntimeError as error:
    print("refused:", error)
"""


@pytest.mark.timeout(1500)  # builds a wheel and installs some gigabytes, when it is the first to ask for them
def test_it_imports_and_works_without_a_gpu(cuda_python: Path, tmp_path: Path) -> None:
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [cuda_python, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, env=hidden, check=False
    )
    assert done.returncode == 0, done.stderr
    first, library, paged, refused = done.stdout.splitlines()
    assert first == "2.6.0+cu124.lms1 12.4 False"
    assert library == "True"
    assert paged == f"{sum(range(64)) * float(1 << 16)} True"
    assert refused.startswith("refused: ") and len(refused) > 20


def test_pip_is_content(cuda_python: Path) -> None:
    done = subprocess.run([cuda_python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "No broken requirements found.\n")
