"""Packages for machines other than this one: the official aarch64 wheel, and a ppc64le base that others packaged.

Needs cross-compilers and an emulator: Debian's packages g++-powerpc64le-linux-gnu, g++-aarch64-linux-gnu and qemu-user-static.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import emulated_python
import synthetic
from lmsbuild import paths
from lmsbuild.bases import framework_package
from lmsbuild.channel import audit, channel
from lmsbuild.conda import package_file, runpath
from lmsbuild.conda.platforms import Platform, find_platform, target_on
from lmsbuild.errors import NoCompiler, SourceUnreachable, WrongPlatform, WrongVersion
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile
from machines import ARM
from solving import install, solve
from stand_ins import PURE_PYTHON, VERSION, make, make_installed
from workshop import Workshop

pytestmark = pytest.mark.build  # compilers for other machines

RECIPES = paths.recipes_folder()
PACKAGES = f"lib/python{VERSION}/site-packages"
TAG = "v2.6.0"
ARM_TAG = "v2.0.1"  # whose official wheel is small; its matrix product takes the emulator a twentieth of 2.6.0's time
MODULES = {name: PURE_PYTHON[name] for name in ("filelock", "jinja2", "markupsafe", "mpmath", "networkx", "sympy")}


def platform(name: str) -> Platform:
    found = find_platform(RECIPES, name)
    if not shutil.which(found.compiler):
        pytest.skip(f"needs {found.compiler}, of the Debian package {found.package}")
    return found


def elves(package: Path) -> dict[str, runpath.Elf]:
    """What every ELF file in the package tells the loader, by its name."""
    found = {}
    for member in package_file.members(package):
        if member.file and ".so" in member.name:
            elf = runpath.read(io.BytesIO(member.file.read()), member.name)
            if elf:
                found[member.name.removeprefix(f"{PACKAGES}/")] = elf
    return found


@pytest.mark.release
def test_aarch64(lms_python: Path, tmp_path: Path) -> None:
    """The official wheel's package, and its own test in the emulator: training in a third of the memory."""
    platform("aarch64")
    ARM.require()
    words = [sys.executable, "-m", "lmsbuild", "conda", "pytorch", ARM_TAG, "--platform", "linux-aarch64"]
    words += ["--python", emulated_python.PYTHON, "--level", "1", "--output", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    package = Path(done.stdout.splitlines()[0])
    assert package.parent == tmp_path / "linux-aarch64"
    (wheel,) = tmp_path.glob("*_aarch64.whl")
    wheel.unlink()
    found = elves(package)
    assert found["torch/lib/libtorch_lms.so"].runpath == ("$ORIGIN",)
    assert {elf.machine for elf in found.values()} == {"EM_AARCH64"}
    channel.publish(tmp_path / "channel", [package])
    assert audit.check(tmp_path / "channel", RECIPES) == 1
    others = tmp_path / "others"
    others.mkdir()
    modules = make_installed(others, lms_python, MODULES, emulated_python.PYTHON, "linux-aarch64")
    channels = tmp_path / "channel", emulated_python.make_channel(ARM, emulated_python.fetch(ARM), others, modules)
    records = solve(*(path.as_uri() for path in channels), subdir="linux-aarch64", glibc="2.36")
    install(records, tmp_path / "env", tmp_path / "cache", subdir="linux-aarch64")
    emulated_python.compile_modules(tmp_path / "env")
    emulated_python.make_libraries(ARM, emulated_python.fetch(ARM), tmp_path / "root")
    shutil.copy(RECIPES / "pytorch/paging.py", tmp_path)
    printed, _ = emulated_python.run(ARM, tmp_path / "env", tmp_path / "root", [str(tmp_path / "paging.py")])
    assert "losses equal to the bit" in printed
    for folder in ("channel", "others", "env", "cache", "root"):
        shutil.rmtree(tmp_path / folder)


@pytest.fixture
def members(tmp_path: Path) -> dict[str, synthetic.Member]:
    """What a community's build has, with small libraries for ppc64le."""
    compiler = platform("ppc64le").compiler
    libraries = {}
    for name, text in {
        "c10": "#include <string>\nstd::string c10_name() { return std::string(64, 'c'); }\n",
        "torch_cpu": 'namespace at { __attribute__((visibility("default"))) int answer() { return 42; } }\n',
    }.items():
        target = tmp_path / f"lib{name}.so"
        words = [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-x",
            "c++",
            "-",
            "-Wl,-rpath,/opt/build/host/lib64",
            "-o",
            target,
        ]
        subprocess.run(words, input=text.encode(), check=True)
        libraries[f"torch/lib/lib{name}.so"] = target.read_bytes()
    return synthetic.members(libraries)


@pytest.fixture
def base_package(members: dict[str, synthetic.Member], tmp_path: Path) -> Path:
    files = {f"{PACKAGES}/{name}": member.data for name, member in members.items()}
    files[f"{PACKAGES}/{synthetic.DIST_INFO}/RECORD"] = b"old,,\n"
    files[f"{PACKAGES}/torch/__pycache__/x.pyc"] = b"x"
    files["bin/other"] = b"x"
    return make(
        tmp_path, "pytorch", "2.13.0", "cuda9.2_py36_1", files=files, depends=["openblas"], subdir="linux-ppc64le"
    )


@pytest.fixture
def base_wheel(members: dict[str, synthetic.Member], tmp_path: Path) -> Path:
    return synthetic.write_wheel(tmp_path / synthetic.wheel_name(platform="linux_ppc64le"), members)


@pytest.mark.parametrize(
    ("kind", "requires"),
    [
        pytest.param("base_package", {"openblas"}, marks=pytest.mark.release),
        ("base_wheel", set()),
        ("split", {"libprotobuf >=3", "sleef"}),
    ],
)
def test_ppc64le_from_a_base(
    kind: str, requires: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("CXX", raising=False)  # the platform's own is found
    given = request.getfixturevalue(kind)
    bases = [word for base in (given.pytorch, given.libtorch) for word in ("--base", base)] if kind == "split" else []
    official = tmp_path / "official"
    official.mkdir()
    small = synthetic.write_wheel(official / synthetic.wheel_name(), synthetic.members(synthetic.libraries(official)))
    made = Workshop(tmp_path, small, synthetic.write_sources(tmp_path / "patches"))
    made.generate()
    words = (
        "conda",
        "pytorch",
        "v2.13.0",
        "--platform",
        "linux-ppc64le",
        *(bases or ("--base", given)),
        "--level",
        "1",
    )
    done = made.run(*words, "--output", made.output)
    assert done.returncode == 0, done.stderr
    assert "the tests inside the package need linux-ppc64le" in done.stderr
    package = Path(done.stdout.splitlines()[0])
    assert package.parent == made.output / "linux-ppc64le"
    (patched,) = made.output.glob("*.whl")
    assert patched.name == synthetic.wheel_name("2.13.0+cpu.lms1", platform="linux_ppc64le")
    with zipfile.ZipFile(patched) as archive:
        assert not [name for name in archive.namelist() if "__pycache__" in name]
    depends = set(package_file.read_description(package)["index"]["depends"])
    assert depends & {"openblas", "libprotobuf >=3", "sleef", "libtorch 2.13.0 *"} == requires
    found = elves(package)
    assert found["torch/lib/libtorch_lms.so"].runpath == ("$ORIGIN",)
    own = ("$ORIGIN",) if kind == "split" else ()
    assert found["torch/lib/libc10.so"].runpath == (*own, "$ORIGIN/../../../..")
    assert {elf.machine for elf in found.values()} == {"EM_PPC64"}
    channel.publish(tmp_path / "channel", [package])
    assert audit.check(tmp_path / "channel", RECIPES) == 1


def test_base_of_another_version_or_machine(base_package: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongVersion, match=r"is version 2.13.0, but 2.6.0 is needed"):
        as_wheel([base_package], "2.6.0", platform("ppc64le"), tmp_path)
    with pytest.raises(WrongPlatform, match="is for linux-ppc64le, not for linux-aarch64"):
        as_wheel([base_package], "2.13.0", platform("aarch64"), tmp_path)
    words = [
        sys.executable,
        "-m",
        "lmsbuild",
        "conda",
        "pytorch",
        TAG,
        "--no-test",
        "--base",
        base_package,
        "--output",
        tmp_path / "out",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "2.6.0 is needed" in done.stderr) == (WrongVersion.exit_code, True)
    assert not list((tmp_path / "out").iterdir())


def as_wheel(packages: list[Path], version: str, where: Platform, folder: Path) -> Path:
    with opened(packages) as files:
        return framework_package.as_wheel(files, "torch", "torch/lib", version, where, folder)


@contextmanager
def opened(packages: list[Path]) -> Iterator[list[InputFile]]:
    with ExitStack() as stack:
        yield [stack.enter_context(InputFile(package)) for package in packages]


@dataclass(frozen=True)
class Split:
    """A framework in two packages: the libraries, to some of which the other has links, and the Python files."""

    libtorch: Path
    pytorch: Path


@pytest.fixture
def split(members: dict[str, synthetic.Member], tmp_path: Path) -> Split:
    libraries, python = tmp_path / "libtorch.tree", tmp_path / "pytorch.tree"
    for name, member in members.items():
        own = name.startswith(("torch/lib/", "torch/include/"))
        target = libraries / name.removeprefix("torch/") if own else python / PACKAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(member.data)
    (libraries / "lib/pkgconfig").mkdir()
    (libraries / "lib/pkgconfig/torch.pc").write_text("x")
    links = {"lib/libc10.so": "../../../../libc10.so"}
    links |= {
        f"include/{path.name}": f"../../../../../include/{path.name}" for path in (libraries / "include").iterdir()
    }
    for name, target in links.items():
        link = python / PACKAGES / "torch" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    made = {}
    for name, tree, depends in (
        ("libtorch", libraries, ["libprotobuf >=3"]),
        ("pytorch", python, ["libtorch 2.13.0 *", "libprotobuf >=3", "sleef"]),
    ):
        made[name] = make(tmp_path, name, "2.13.0", "cpu_0", tree=tree, depends=depends, subdir="linux-ppc64le")
        shutil.rmtree(tree)
    return Split(**made)


@pytest.mark.parametrize("order", [("pytorch", "libtorch"), ("libtorch", "pytorch")])
def test_a_framework_in_two_packages(
    order: tuple[str, str], split: Split, members: dict[str, synthetic.Member], tmp_path: Path
) -> None:
    packages = [getattr(split, name) for name in order]
    with opened(packages) as files:
        assert set(framework_package.requirements(files)) == {"libprotobuf >=3", "sleef"}
    wheel = as_wheel(packages, "2.13.0", platform("ppc64le"), tmp_path)
    assert wheel.name == synthetic.wheel_name("2.13.0+cpu", platform="linux_ppc64le")
    with WheelFile(wheel) as file:
        assert set(file.members) == {*members, f"{synthetic.DIST_INFO}/RECORD"}  # nothing of lib/pkgconfig
        file.verify(lambda name: None, lambda done: None)
        for name, member in members.items():
            if name.startswith("torch/include/"):
                assert file.read(name) == member.data
            elif name.startswith("torch/lib/"):  # one by way of a link, the other by none
                elf = runpath.read(io.BytesIO(file.read(name)), name)
                assert elf and elf.runpath == ("$ORIGIN", "$ORIGIN/../../../..")


def test_a_part_of_the_framework_is_no_base(split: Split, tmp_path: Path) -> None:
    where = platform("ppc64le")
    with pytest.raises(WrongVersion, match="libtorch.* does not hold what pip installs .* each part .*--base again"):
        as_wheel([split.libtorch], "2.13.0", where, tmp_path)
    with pytest.raises(WrongVersion, match=r"has .*torch/\S+ as a link to .*which is not in it: give .* libtorch, too"):
        as_wheel([split.pytorch], "2.13.0", where, tmp_path)


def conda(*words: str | Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and what was said."""
    command = [sys.executable, "-m", "lmsbuild", "conda", "pytorch", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    return done.returncode, done.stderr


def test_where_there_is_no_base(base_package: Path, tmp_path: Path) -> None:
    """Every such error is said before anything is fetched."""
    power, output = ("--platform", "linux-ppc64le"), ("--output", tmp_path / "out")
    code, said = conda(TAG, *power, *output)
    assert code == WrongPlatform.exit_code
    assert "no official wheel of pytorch v2.6.0 for linux-ppc64le" in said and "Debian builds v1.13.1" in said
    code, said = conda(TAG, "--base", "debian", "--no-test", *output)
    assert code == WrongPlatform.exit_code and "for linux-64 Debian builds none" in said
    code, said = conda(TAG, *power, "--base", "debian", "--base", base_package, *output)
    assert code == WrongVersion.exit_code and "debian is a whole base" in said
    for words in ((), ("--dry-run",)):
        code, said = conda("v1.13.1", *power, "--python", "3.10", *words, *output)
        assert code == WrongVersion.exit_code and "for Python 3.11, not 3.10" in said
    # A machine that is not Debian, whose PATH has only what the tool itself needs.
    (tmp_path / "bin").mkdir()
    for program in (platform("ppc64le").compiler, "git"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    elsewhere = {"PATH": str(tmp_path / "bin"), "LMSBUILD_CACHE": str(tmp_path / "cache")}
    code, said = conda("v1.13.1", *power, *output, environment=elsewhere)
    assert code == SourceUnreachable.exit_code
    assert "needs apt-get and dpkg-deb and an entry for Debian's archive" in said and "--base" in said
    assert not list((tmp_path / "out").iterdir())


def test_base_wheel_for_another_machine(tmp_path: Path) -> None:
    wheel = tmp_path / f"torch-2.6.0-cp3{VERSION[2:]}-cp3{VERSION[2:]}-manylinux_2_28_aarch64.whl"
    synthetic.write_wheel(wheel, {f"{synthetic.DIST_INFO}/METADATA": synthetic.Member(b"")})
    words = [sys.executable, "-m", "lmsbuild", "conda", "pytorch", TAG, "--no-test", "--base", wheel]
    words += ["--output", tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "manylinux_2_28_aarch64" in done.stderr) == (WrongPlatform.exit_code, True)


def test_no_compiler_for_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompiler, match="apt-get install g\\+\\+-powerpc64le-linux-gnu"):
        target_on(find_platform(RECIPES, "ppc64le"), None)
