"""A conda package out of a small wheel: its folder for the recipe, and the package that the recipe makes of it."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import small_wheels
from lmsbuild import paths
from lmsbuild.conda import package_file, package_tests, packager, runpath
from lmsbuild.elf import symbols
from lmsbuild.errors import (
    CondaBuildFailed,
    DamagedWheel,
    FolderInUse,
    TamperedWheel,
    UnknownRequirement,
    WrongPlatform,
    WrongVersion,
)
from lmsbuild.wheel.wheel import record_hash
from small_wheels import variants
from stand_ins import ABI, VERSION

pytestmark = pytest.mark.build  # builds packages, by programs of other builders, too

RECIPES = paths.recipes_folder()
PACKAGES = f"lib/python{VERSION}/site-packages"


def package(wheel: Path, output: Path) -> Path:
    return packager.build(packager.Options(wheel, RECIPES, output, (), test=False, level=1))[0]


def cuda_wheel(folder: Path, **changes: object) -> Path:
    files = {
        "torch/lib/libc10_cuda.so": small_wheels.library(folder, small_wheels.FOREIGN),
        "functorch/_C.so": small_wheels.library(
            folder, "$ORIGIN/../torch/lib:/usr/local/cuda/lib64:/build/machine/lib"
        ),
    }
    requires = ("filelock", "nvidia-cublas-cu12==12.4.5.8", "sympy>=1.13.3")
    return small_wheels.write(folder, version="2.6.0+lms1", requires=requires, files=files, **changes)


def test_package_says_what_it_is(tmp_path: Path) -> None:
    built = package(cuda_wheel(tmp_path), tmp_path / "dist")
    assert built == tmp_path / f"dist/linux-64/pytorch-2.6.0-cuda124_py{ABI[2:]}_lms1_101100.conda"
    assert built.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["linux-64"]
    index = package_file.read_description(built)["index"]
    assert (index["name"], index["version"], index["build_number"]) == ("pytorch", "2.6.0", 101100)
    assert set(index["depends"]) == {
        f"python >={VERSION},<3.{int(VERSION[2:]) + 1}.0a0",
        f"python_abi {VERSION}.* *_{ABI}",
        "__cuda",
        "__glibc >=2.34,<3.0a0",
        "libgcc",
        "libstdcxx",
        "filelock",
        "sympy >=1.13.3",
        "libcublas >=12.4.5.8,<13.0a0",
        "cuda-version >=12.4,<13",
        "numpy >=1.23",
    }
    assert index["constrains"] == ["libtorch ==2.6.0 " + index["build"], "pytorch-cpu <0", "pytorch-gpu ==2.6.0"]
    exported = ["pytorch >=2.6.0,<2.7.0a0", "libtorch >=2.6.0,<2.7.0a0"]
    assert package_file.read_description(built)["run_exports"] == {"weak": exported}
    assert index["license_family"] == "BSD"
    assert not index.get("track_features") and not index.get("features")
    assert index["license"] == "BSD-3-Clause AND Apache-2.0"
    names = {member.name for member in package_file.members(built)}
    assert {"info/licenses/licenses/wheel/LICENSE", "info/licenses/licenses/LICENSE-large-model-support"} <= names
    assert {"info/tests/tests.yaml", "info/recipe/recipe.yaml", "bin/torchrun"} <= names
    assert f"{PACKAGES}/torch/lib/libtorch_lms.so" in names


def test_package_of_a_cpu_wheel(tmp_path: Path) -> None:
    described = variants(small_wheels.write(tmp_path))
    assert described["build_string"] == f"cpu_py{ABI[2:]}_lms1_1100"
    assert described["version"] == "2.13.0"
    assert described["run_cuda_version"] == described["run_libcublas"] == ""


@pytest.mark.parametrize(
    ("abi", "python", "build"), [("cp37m", "3.7", "py37m"), ("cp313t", "3.13t", "py313t"), ("cp310", "3.10", "py310")]
)
def test_interpreters(tmp_path: Path, abi: str, python: str, build: str) -> None:
    wheel = small_wheels.write(tmp_path, abi=abi)
    described = variants(wheel)
    assert described["python"] == python and build in described["build_string"]
    assert described["run_python_abi"] == f"python_abi {python.rstrip('t')}.* *_{abi}"
    recipe = packager.prepare(wheel, RECIPES, tmp_path / "folder")
    assert (recipe.parent / f"tree/lib/python{python}/site-packages/torch/__init__.py").is_file()


@pytest.mark.parametrize(
    ("platform", "subdir", "glibc"),
    [
        ("manylinux_2_28_aarch64", "linux-aarch64", "__glibc >=2.28,<3.0a0"),
        ("linux_ppc64le", "linux-ppc64le", "__glibc >=2.17,<3.0a0"),
        ("manylinux2014_x86_64", "linux-64", "__glibc >=2.17,<3.0a0"),
        ("manylinux1_x86_64", "linux-64", "__glibc >=2.5,<3.0a0"),
    ],
)
def test_platforms(tmp_path: Path, platform: str, subdir: str, glibc: str) -> None:
    wheel = small_wheels.write(tmp_path, platform=platform)
    assert variants(wheel)["run_glibc"] == glibc
    assert package(wheel, tmp_path / "dist").parent.name == subdir


def test_libraries_find_those_of_the_environment(tmp_path: Path) -> None:
    recipe = packager.prepare(cuda_wheel(tmp_path), RECIPES, tmp_path / "folder")
    packages = recipe.parent / "tree" / PACKAGES
    found = {}
    for name in ("torch/lib/libc10_cuda.so", "functorch/_C.so", "torch/lib/libtorch_lms.so"):
        with (packages / name).open("rb") as stream:
            elf = runpath.read(stream, name)
        assert elf is not None
        found[name] = elf.runpath
        subprocess.run(["readelf", "--dynamic", packages / name], check=True, capture_output=True)
    assert found == {
        "torch/lib/libc10_cuda.so": ("$ORIGIN", "$ORIGIN/../../../.."),
        "functorch/_C.so": ("$ORIGIN/../torch/lib", "$ORIGIN/../../.."),
        "torch/lib/libtorch_lms.so": ("$ORIGIN",),
    }


def test_record_is_what_pip_would_have_written(tmp_path: Path) -> None:
    recipe = packager.prepare(cuda_wheel(tmp_path), RECIPES, tmp_path / "folder")
    packages = recipe.parent / "tree" / PACKAGES
    dist_info = packages / "torch-2.6.0+lms1.dist-info"
    with (dist_info / "RECORD").open() as file:
        rows = {name: digest for name, digest, _ in csv.reader(file)}
    files = {os.path.relpath(path, packages): path for path in (recipe.parent / "tree").rglob("*") if path.is_file()}
    links = {name for name, path in files.items() if path.is_symlink()}
    assert set(rows) == set(files) - links
    empty = {name for name, digest in rows.items() if not digest}
    assert empty == {f"{dist_info.name}/RECORD"}
    for name in set(rows) - empty:
        assert rows[name] == record_hash(files[name].read_bytes()), name
    assert (dist_info / "INSTALLER").read_text() == "conda\n"


def test_pip_misses_nothing(tmp_path: Path) -> None:
    """What conda packages bring that are no Python packages is not in METADATA, or pip would install it a second time."""
    files = {"torch/lib/libc10_cuda.so": small_wheels.library(tmp_path, "$ORIGIN")}
    stated = [
        "nvidia-cublas-cu12==12.4.5.8 ; platform_system == 'Linux'",
        "sympy>=1.13.3",
        "optree>=0.13 ; extra == 'optree'",
    ]
    wheel = small_wheels.write(tmp_path, version="2.6.0+lms1", requires=stated, files=files)
    recipe = packager.prepare(wheel, RECIPES, tmp_path / "folder")
    text = (recipe.parent / "tree" / PACKAGES / "torch-2.6.0+lms1.dist-info/METADATA").read_text()
    required = [line.removeprefix("Requires-Dist: ") for line in text.splitlines() if line.startswith("Requires-Dist")]
    assert required == stated[1:]


@pytest.mark.parametrize("name", ["libgomp.so.1", "libgomp-a34b3233.so.1", "libgomp-98df74fd.so.1.0.0"])
def test_openmp_of_the_environment(name: str, tmp_path: Path) -> None:
    """In place of the copy that the wheel carries, whatever it is called there."""
    carried = small_wheels.library(tmp_path, "$ORIGIN", f"-Wl,-soname,{name}")
    (tmp_path / name).write_bytes(carried)
    user = small_wheels.library(tmp_path, "$ORIGIN", "-Wl,--no-as-needed", f"-L{tmp_path}", f"-l:{name}")
    files = {f"torch/lib/{name}": carried, "torch/lib/libtorch_cpu.so": user}
    recipe = packager.prepare(small_wheels.write(tmp_path, files=files), RECIPES, tmp_path / "folder")
    folder = recipe.parent / "tree" / PACKAGES / "torch/lib"
    assert not (folder / name).exists()
    with (folder / "libtorch_cpu.so").open("rb") as stream:
        elf = runpath.read(stream, "libtorch_cpu.so")
    assert elf is not None and elf.runpath == ("$ORIGIN", "$ORIGIN/../../../..")
    assert "libgomp.so.1" in elf.needed and (name == "libgomp.so.1" or name not in elf.needed)
    assert json.loads((recipe / "variants.yaml").read_text())["run_openmp"] == ["_openmp_mutex >=4.5"]


@pytest.mark.parametrize(("tag", "needed"), [("2.2.2", "numpy >=1.16,<2"), ("2.3.0", "numpy >=1.23")])
def test_numpy_that_the_release_was_built_for(tag: str, needed: str, tmp_path: Path) -> None:
    assert variants(small_wheels.write(tmp_path, version=f"{tag}+cpu.lms1"))["run_numpy"] == needed


def test_commands_run_the_interpreter_beside_them(tmp_path: Path) -> None:
    """Wherever the environment is, and also through a link."""
    wheel = small_wheels.write(
        tmp_path, programs="where = torch.where:main", files={"torch/where.py": b"def main(): pass\n"}
    )
    recipe = packager.prepare(wheel, RECIPES, tmp_path / "folder")
    folder = tmp_path / 'an environment with spaces\' and "quotes"' / "bin"
    folder.mkdir(parents=True)
    (folder / "where").write_bytes((recipe.parent / "tree/bin/where").read_bytes())
    (folder / "where").chmod(0o755)
    (folder / "python").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (folder / "python").chmod(0o755)
    (tmp_path / "link").symlink_to(folder / "where")
    for program, at in ((folder / "where", folder / "where"), (tmp_path / "link", tmp_path / "link")):
        done = subprocess.run([program, "a b", "c"], capture_output=True, text=True, check=True)
        assert done.stdout == f"{at}|a b|c|"
    compile((folder / "where").read_text(), "where", "exec")


def test_other_places_of_a_wheel(tmp_path: Path) -> None:
    data = "torch-2.13.0+cpu.lms1.data"
    files = {f"{data}/purelib/torchgen/a.py": b"", f"{data}/data/share/b": b"", f"{data}/scripts/c": b"#!python\n"}
    recipe = packager.prepare(small_wheels.write(tmp_path, files=files), RECIPES, tmp_path / "folder")
    tree = recipe.parent / "tree"
    assert (tree / PACKAGES / "torchgen/a.py").is_file() and (tree / "share/b").is_file()
    assert os.access(tree / "bin/c", os.X_OK)
    odd = small_wheels.write(tmp_path, files={f"{data}/headers/x.h": b""})
    with pytest.raises(WrongPlatform, match="files for 'headers'"):
        packager.prepare(odd, RECIPES, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(WrongPlatform):
        packager.prepare(odd, RECIPES, tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


def test_the_folder_is_complete_for_other_builders(tmp_path: Path) -> None:
    """rattler-build's own entry, which its command line calls, finds variants.yaml beside the recipe."""
    recipe = packager.prepare(small_wheels.write(tmp_path), RECIPES, tmp_path / "folder")
    program = (
        "import sys, warnings\nwarnings.simplefilter('ignore')\nfrom rattler_build.cli_api import build_recipes\n"
        "build_recipes([sys.argv[1]], output_dir=sys.argv[2], channel=[], test='skip', package_format='conda:1')\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, recipe / "recipe.yaml", tmp_path / "out"], check=True, capture_output=True
    )
    built = {path.name: path for path in (tmp_path / "out").glob("linux-*/*.conda")}
    package(small_wheels.write(tmp_path), tmp_path / "dist")
    ours = {path.name: path for path in (tmp_path / "dist").glob("linux-*/*.conda")}
    assert set(built) == set(ours)
    for name, path in ours.items():
        assert listed(built[name]) == listed(path)


def listed(built: Path) -> dict[str, tuple[str, int]]:
    rows = package_file.read_description(built)["paths"]["paths"]
    return {row["_path"]: (row.get("sha256"), row.get("size_in_bytes")) for row in rows}


def test_no_address_and_no_machine_in_the_recipe() -> None:
    for path in RECIPES.rglob("*"):
        if path.is_file():
            recipe, _, about = path.read_text().partition("\nabout:\n")
            assert not re.search(r"https?:|track_features", recipe), path
            assert (
                all(key in about for key in ("homepage", "repository", "documentation", "license_family")) or not about
            )


def test_a_recipe_without_a_line_for_what_is_required(tmp_path: Path) -> None:
    """It would be left out of the package in silence."""
    wheel = small_wheels.write(tmp_path, requires=["filelock", "grpcio"])
    with pytest.raises(UnknownRequirement, match="requires grpcio, for which recipes/pytorch/recipe.yaml has no line"):
        package(wheel, tmp_path / "dist")


def test_not_patched(tmp_path: Path) -> None:
    with pytest.raises(WrongVersion, match="is no patched wheel"):
        package(small_wheels.write(tmp_path, version="2.13.0+cpu"), tmp_path / "dist")
    with pytest.raises(WrongVersion, match="there are recipes for tensorflow, tensorflow-cpu, torch only"):
        package(small_wheels.write(tmp_path, package="jax"), tmp_path / "dist")
    with pytest.raises(WrongPlatform, match="made for CPython 3"):
        package(small_wheels.write(tmp_path, abi="pp310"), tmp_path / "dist")
    with pytest.raises(WrongPlatform, match="no packages for 's390x', only for linux-64"):
        package(small_wheels.write(tmp_path, platform="manylinux_2_28_s390x"), tmp_path / "dist")


def test_damaged_wheel_leaves_nothing(tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path)
    data = wheel.read_bytes()
    wheel.write_bytes(data[:-50])
    with pytest.raises(DamagedWheel):
        package(wheel, tmp_path / "dist")
    wheel.write_bytes(data.replace(b"a licence", b"b licence"))
    with pytest.raises((DamagedWheel, TamperedWheel)):
        package(wheel, tmp_path / "dist")
    assert not list((tmp_path / "dist").rglob("*"))
    with pytest.raises((DamagedWheel, TamperedWheel)):
        packager.prepare(wheel, RECIPES, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_channels_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert package_tests.address("mine") == (tmp_path / "mine").as_uri()
    assert package_tests.address("conda-forge") == "conda-forge"


def test_folder_in_use(tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path)
    packager.prepare(wheel, RECIPES, tmp_path / "folder")
    with pytest.raises(FolderInUse):
        packager.prepare(wheel, RECIPES, tmp_path / "folder")


def test_a_failing_recipe_leaves_nothing(tmp_path: Path) -> None:
    """A package without what its own test looks for."""
    recipes = tmp_path / "recipes"
    subprocess.run(["cp", "-r", RECIPES, recipes], check=True)
    recipe = recipes / "pytorch/recipe.yaml"
    recipe.write_text(recipe.read_text().replace("torch/lib/libtorch_lms.so", "torch/lib/libtorch_other.so"))
    with pytest.raises(CondaBuildFailed, match="libtorch_other"):
        packager.build(
            packager.Options(small_wheels.write(tmp_path), recipes, tmp_path / "dist", (), test=False, level=1)
        )
    assert not list((tmp_path / "dist").rglob("*"))


@pytest.mark.parametrize("tag", ["DT_RPATH", "DT_RUNPATH"])
@pytest.mark.parametrize(
    "entries", [("/",), ("$ORIGIN", "$ORIGIN/../../a/place/that/is/much/longer/than/the/one/before")]
)
def test_library_path_of_any_length(tmp_path: Path, tag: str, entries: tuple[str, ...]) -> None:
    """The library still loads, and what it exports is as before."""
    library = tmp_path / "l.so"
    dtags = "--disable-new-dtags" if tag == "DT_RPATH" else "--enable-new-dtags"
    words = ["g++", "-shared", "-fPIC", "-x", "c++", "-", f"-Wl,{dtags},-rpath,/some/place", "-o", library]
    subprocess.run(words, input=b'extern "C" int answer() { return 42; }\n', check=True)
    runpath.write(library, entries)
    with library.open("rb") as stream:
        elf = runpath.read(stream, "l.so")
    assert elf is not None and (elf.runpath, elf.tag) == (entries, tag)
    call = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).answer() != 42)"
    subprocess.run([sys.executable, "-c", call, library], check=True)


def test_library_path_that_is_also_a_name(tmp_path: Path) -> None:
    """Linkers let the end of one text be another text."""
    library = tmp_path / "l.so"
    words = ["g++", "-shared", "-fPIC", "-O1", "-x", "c++", "-", "-Wl,-s,-rpath,/some/place/shared_end", "-o", library]
    subprocess.run(words, input=b'extern "C" int shared_end() { return 1; }\n', check=True)
    if b"\0shared_end\0" in library.read_bytes():
        pytest.skip("needs a linker that lets texts share their ends")
    runpath.write(library, ("/",))
    with library.open("rb") as stream:
        elf = runpath.read(stream, "l.so")
    assert elf is not None and elf.runpath == ("/",)
    assert symbols.exported_functions(library, "shared") == ["shared_end"]


def test_library_path_of_a_broken_file(tmp_path: Path) -> None:
    library = tmp_path / "l.so"
    library.write_bytes(small_wheels.library(tmp_path, "/a")[:100])
    with pytest.raises(DamagedWheel, match=r"l\.so"):
        runpath.write(library, ("/",))


def test_command_needs_the_tag_of_the_wheel(tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path)
    words = [sys.executable, "-m", "lmsbuild", "conda", "pytorch"]
    done = subprocess.run([*words, "v2.6.0", "--wheel", wheel], capture_output=True, text=True, check=False)
    assert done.returncode == WrongVersion.exit_code and "v2.6.0 needs 2.6.0" in done.stderr
    done = subprocess.run(
        [*words, "v2.13.0", "--wheel", wheel, "--prepare", tmp_path / "folder"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(tmp_path / "folder/recipe")
    assert json.loads((tmp_path / "folder/recipe/variants.yaml").read_text())["version"] == ["2.13.0"]
