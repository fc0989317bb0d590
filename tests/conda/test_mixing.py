"""Our channel before conda-forge's, with strict priority: what a solver takes from which.

conda-forge is stood in for by packages without contents, which require what the real ones do: conda_forge.toml. So this shows that
the requirements fit together, not that the compiled packages do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rattler.exceptions import SolverError

import small_wheels
from lmsbuild import paths
from lmsbuild.catalogue.catalogue import read_toml
from lmsbuild.channel import channel
from lmsbuild.conda import packager
from solving import solve
from stand_ins import ABI, VERSION, make

SERIES = VERSION.replace(".", "")
RECIPES = paths.recipes_folder()
REQUIRES = (
    "filelock",
    "fsspec>=0.8.5",
    "jinja2",
    "networkx>=2.5.1",
    "setuptools<82",
    "sympy>=1.13.3",
    "typing-extensions>=4.10.0",
)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("conda-forge")
    table = json.dumps(read_toml(Path(__file__).with_name("conda_forge.toml")))
    for name, value in (("PYTHON", VERSION), ("SERIES", SERIES), ("ABI", ABI)):
        table = table.replace(name, value)
    known = json.loads(table)
    rows = [*known["package"], *({"name": name, "version": version} for name, version in known["leaves"].items())]
    channel.publish(folder / "channel", [make(folder, **row) for row in rows])
    return (folder / "channel").as_uri()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With a CPU build and a CUDA build."""
    folder = tmp_path_factory.mktemp("ours")
    runtime = small_wheels.library(folder, "$ORIGIN")
    cpu = small_wheels.write(folder, requires=REQUIRES, files={"torch/lib/libgomp.so.1": runtime})
    files = {"torch/lib/libgomp.so.1": runtime, "torch/lib/libc10_cuda.so": runtime}
    needs = (*REQUIRES, "nvidia-cuda-runtime==13.0.48", "triton==3.7.1; platform_system == 'Linux'")
    cuda = small_wheels.write(folder, version="2.13.0+cu130.lms1", requires=needs, files=files, cuda="13.0")
    for wheel in (cpu, cuda):
        packager.build(packager.Options(wheel, RECIPES, folder / "dist", (), test=False, level=1))
    channel.publish(folder / "channel", (folder / "dist").glob("*/*.conda"))
    return (folder / "channel").as_uri()


def chosen(*channels: str, specs: tuple[str, ...], cuda: str = "") -> dict[str, str]:
    """The build of each package of an environment, on a machine with a driver for this version of CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONDA_OVERRIDE_CUDA", cuda)
        return {record.name.normalized: f"{record.build}" for record in solve(*channels, specs=specs)}


@pytest.mark.parametrize(
    "specs",
    [
        ("pytorch", "torchvision", "lightning"),
        ("pytorch-cpu", "pytorch-lightning"),
        ("transformers", "accelerate", "timm"),
        ("libtorch", "torchmetrics"),
    ],
    ids=" ".join,
)
def test_what_others_built_for_this_version(specs: tuple[str, ...], ours: str, theirs: str) -> None:
    found = chosen(ours, theirs, specs=specs)
    assert {name: found[name] for name in ("pytorch", "libtorch", "pytorch-cpu") if name in found} == {
        name: f"cpu_py{SERIES}_lms1_1100" for name in ("pytorch", "libtorch", "pytorch-cpu") if name in found
    }
    assert found["pytorch"] and found["_openmp_mutex"] == "20_gnu" and "mkl" not in found
    if "torchvision" in found:
        assert found["torchvision"] == f"cpu_py{SERIES}_h1_1" and "libtorch" in found


def test_with_a_gpu(ours: str, theirs: str) -> None:
    found = chosen(ours, theirs, specs=("pytorch", "torchvision", "pytorch-gpu"), cuda="13.0")
    assert {found[name] for name in ("pytorch", "libtorch", "pytorch-gpu")} == {f"cuda130_py{SERIES}_lms1_101100"}
    assert found["torchvision"] == f"cuda130_py{SERIES}_h2_1"
    assert chosen(ours, theirs, specs=("pytorch-cpu",), cuda="13.0")["pytorch"] == f"cpu_py{SERIES}_lms1_1100"
    too_old = chosen(ours, theirs, specs=("pytorch", "torchvision"), cuda="12.4")
    assert (too_old["pytorch"], too_old["torchvision"]) == (f"cpu_py{SERIES}_lms1_1100", f"cpu_py{SERIES}_h1_1")


def test_one_openmp_runtime_for_all(ours: str, theirs: str) -> None:
    """Where something needs LLVM's, ours takes that, too."""
    found = chosen(ours, theirs, specs=("pytorch", "numpy", "libblas * *mkl"))
    assert found["pytorch"] == f"cpu_py{SERIES}_lms1_1100"
    assert found["_openmp_mutex"] == "8_kmp_llvm" and "libgomp" not in found


def test_cpu_and_gpu_at_once(ours: str, theirs: str) -> None:
    with pytest.raises(SolverError, match="pytorch-gpu"):
        chosen(ours, theirs, specs=("pytorch-cpu", "pytorch-gpu"), cuda="13.0")


def test_not_with_their_libraries(ours: str, theirs: str) -> None:
    """Their libtorch beside our pytorch, as a client without strict priority might have it."""
    with pytest.raises(SolverError, match="libtorch"):
        chosen(ours, theirs, specs=("pytorch * *lms1*", "libtorch * cpu_mkl*"))


def test_older_libraries(theirs: str, tmp_path: Path) -> None:
    """Those of a wheel with the C++ strings of old are for nothing that others compiled."""
    old = {"torch/lib/libc10.so": small_wheels.c10(tmp_path, cxx11=False)}
    wheel = small_wheels.write(tmp_path, requires=REQUIRES, files=old)
    built = packager.build(packager.Options(wheel, RECIPES, tmp_path / "dist", (), test=False, level=1))
    assert [path.name.split("-2")[0] for path in built] == ["pytorch", "pytorch-cpu"]
    channel.publish(tmp_path / "channel", built)
    ours = (tmp_path / "channel").as_uri()
    assert chosen(ours, theirs, specs=("pytorch", "lightning"))["pytorch"] == f"cpu_py{SERIES}_lms1_1100"
    with pytest.raises(SolverError, match="libtorch"):
        chosen(ours, theirs, specs=("pytorch", "torchvision"))
