"""Building again: from the same inputs the same bytes, and a fix with a higher number that clients prefer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from rattler.exceptions import SolverError

import small_wheels
from lmsbuild import paths, source_date
from lmsbuild.channel import channel
from lmsbuild.conda import LARGEST_NUMBER, package_file, packager, variants
from lmsbuild.errors import BadSetting, BadSources
from solving import solve
from stand_ins import ABI, VERSION, make

pytestmark = pytest.mark.build  # builds packages

RECIPES = paths.recipes_folder()
EPOCH = 1700000000
PYTHON = VERSION.replace(".", "")
GPU, NO_GPU = "13.0", ""  # what CONDA_OVERRIDE_CUDA says
# What the packages require, and what stands for it.
OTHERS = (
    ("python", f"{VERSION}.1", f"0_{ABI}"),
    ("python_abi", VERSION, f"0_{ABI}"),
    *((name, "15.2.0", "0") for name in ("libgcc", "libstdcxx")),
    ("numpy", "2.3.0", "0"),
)


def build(wheel: Path, output: Path, recipes: Path = RECIPES, **changes: int) -> list[Path]:
    options = {"test": False, "level": 3, **changes}
    return packager.build(packager.Options(wheel, recipes, output, (), **options))


def test_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the folder, the umask, the number of threads, and what earlier runs left in the recipe's folder."""
    wheel = small_wheels.write(tmp_path, files={"torch/large.bin": os.urandom(1 << 16) * 40})
    recipes = tmp_path / "recipes"
    shutil.copytree(RECIPES, recipes)
    first = build(wheel, tmp_path / "one", recipes, threads=1)
    left = recipes / "pytorch/__pycache__/paging.cpython-311.pyc"
    left.parent.mkdir(exist_ok=True)
    left.write_text(str(tmp_path))
    before = os.umask(0o077)
    try:
        again = build(wheel, tmp_path / "quite another folder", recipes, threads=3)
    finally:
        os.umask(before)
    assert [path.name for path in first] == [path.name for path in again]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
        assert one.stat().st_mode & 0o777 == 0o644 == other.stat().st_mode & 0o777
        for member in package_file.members(one):
            assert member.file is None or str(tmp_path).encode() not in member.file.read(), member.name
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    dated = build(wheel, tmp_path / "dated")
    assert package_file.read_description(dated[0])["index"]["timestamp"] == EPOCH * 1000


@pytest.mark.parametrize("text", ["-1", "now", "1e9", "99999999999999999999"])
def test_a_date_that_is_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    with pytest.raises(BadSetting, match="seconds since 1970"):
        build(small_wheels.write(tmp_path), tmp_path / "dist")
    assert not list((tmp_path / "dist").iterdir())


def test_dates_of_archives() -> None:
    assert source_date.archive_date(0) == (1980, 1, 1, 0, 0, 0)
    assert source_date.seconds_of(source_date.archive_date(EPOCH)) == EPOCH
    assert source_date.seconds_of((1980, 0, 0, 0, 0, 0)) == source_date.EARLIEST


@pytest.mark.parametrize(
    ("version", "number"), [("0.1.0", 1100), ("0.1.1", 1101), ("0.2", 1200), ("1.2.3.dev4", 11203)]
)
def test_number_of_a_version(version: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: version)
    assert variants.own_number() == number <= LARGEST_NUMBER


@pytest.mark.parametrize("version", ["9.0.0", "0.100.0", "0.1.100"])
def test_version_without_a_number(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: version)
    with pytest.raises(BadSources, match=version):
        variants.own_number()


def cuda_wheel(folder: Path) -> Path:
    folder.mkdir()
    files = {"torch/lib/libc10_cuda.so": small_wheels.library(folder, "$ORIGIN")}
    return small_wheels.write(folder, version="2.13.0+cu130.lms1", files=files, cuda="13.0", requires=())


def chosen(channel: Path, machine: str = NO_GPU, spec: str = "pytorch") -> str:
    """The build of pytorch that a client takes on a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONDA_OVERRIDE_CUDA", machine)
        found = solve(channel.as_uri(), specs=(spec,))
    return next(f"{record.build}" for record in found if record.name.normalized == "pytorch")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with a CPU build and a CUDA build of one version, with what they require."""
    folder = tmp_path_factory.mktemp("both")
    cpu = small_wheels.write(folder, requires=())
    built = [*build(cpu, folder / "dist"), *build(cuda_wheel(folder / "cuda"), folder / "dist")]
    others = [make(folder, *names) for names in OTHERS]
    channel.publish(folder / "channel", [*built, *others])
    return folder / "channel"


def test_a_fix_is_published_and_preferred(both: Path, tmp_path: Path) -> None:
    shutil.copytree(both, tmp_path / "channel")
    wheel = small_wheels.write(tmp_path, requires=())
    words = [
        sys.executable,
        "-m",
        "lmsbuild",
        "conda",
        "pytorch",
        "v2.13.0",
        "--wheel",
        wheel,
        "--no-test",
        "--level",
        "1",
    ]
    words += ["--number", "1101", "--output", tmp_path / "dist"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    channel.publish(tmp_path / "channel", [Path(line) for line in done.stdout.splitlines()])
    assert chosen(tmp_path / "channel") == f"cpu_py{PYTHON}_lms1_1101"
    assert chosen(tmp_path / "channel", machine=GPU) == f"cuda130_py{PYTHON}_lms1_101100"


def test_cuda_only_where_there_is_a_driver(both: Path) -> None:
    assert chosen(both) == f"cpu_py{PYTHON}_lms1_1100"
    assert chosen(both, machine=GPU) == f"cuda130_py{PYTHON}_lms1_101100"
    assert chosen(both, machine=GPU, spec="pytorch * cpu*") == f"cpu_py{PYTHON}_lms1_1100"
    with pytest.raises(SolverError, match="__cuda"):
        chosen(both, spec="pytorch * cuda*")
