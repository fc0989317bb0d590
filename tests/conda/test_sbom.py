"""The SBOM in conda packages: the wheel that they were made of, and what that was made of."""

from __future__ import annotations

from pathlib import Path

import pytest

import sboms
import small_wheels
from lmsbuild import paths
from lmsbuild.conda import package_file, packager
from lmsbuild.errors import DamagedWheel
from lmsbuild.sbom import sbom
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import file_sha256

MEMBER = f"torch-2.13.0+cpu.lms1.dist-info/{sbom.MEMBER}"
EPOCH = 1700000000
BASE = sbom.wheel("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "a" * 64)


def build(wheel: Path, output: Path) -> list[Path]:
    return packager.build(packager.Options(wheel, paths.recipes_folder(), output, (), test=False, level=1))


def read(package: Path) -> sboms.Sbom:
    """Also, that nothing of it is installed."""
    names = {row["_path"] for row in package_file.read_description(package)["paths"]["paths"]}
    assert not {name for name in names if name.startswith("info/")}
    found = {member.name: member.file.read() for member in package_file.members(package) if member.file}
    return sboms.Sbom(found[sbom.CONDA_MEMBER])


def test_every_package_says_what_it_was_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = small_wheels.write(tmp_path).name
    own = sbom.of_wheel(name, target_for(None), [BASE, *sbom.tools(["g++"])], EPOCH)
    wheel = small_wheels.write(tmp_path, files={MEMBER: own})
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    packages = build(wheel, tmp_path / "dist")
    assert [package_file.identity(path.name).name for path in packages] == ["pytorch", "libtorch", "pytorch-cpu"]
    for package in packages:
        found, identity = read(package), package_file.identity(package.name)
        assert (found.whole["name"], found.whole["version"]) == (identity.name, identity.version)
        assert found.whole["purl"] == (
            f"pkg:conda/{identity.name}@2.13.0?build={identity.build}&subdir=linux-64&type=conda"
        )
        assert sboms.properties(found.whole) == {"file": package.name, "platform": "linux-64"}
        assert found.document["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
        (made_of,) = found.parts().values()
        assert (made_of["version"], sboms.sha256(made_of)) == ("2.13.0+cpu.lms1", file_sha256(wheel))
        assert sboms.properties(made_of) == {**sboms.properties(sboms.Sbom(own).whole), "file": wheel.name}
        assert found.parts(made_of) == sboms.Sbom(own).parts()
    members = {member.name: member.file.read() for member in package_file.members(packages[0]) if member.file}
    assert [data for path, data in members.items() if path.endswith(f"/{MEMBER}")] == [own]


def test_a_wheel_without_one(tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path)
    text = sbom.of_conda_package("pytorch-2.13.0-build.conda", "linux-64", wheel, "b" * 64, EPOCH)
    (made_of,) = sboms.Sbom(text).parts().values()
    assert (made_of["name"], sboms.sha256(made_of)) == ("torch", "b" * 64)
    assert made_of["purl"].startswith("pkg:pypi/torch@2.13.0%2Bcpu.lms1?")


def test_a_wheel_that_was_renamed_is_called_as_it_is(tmp_path: Path) -> None:
    """`wheel tags` leaves the SBOM as it was."""
    older = "torch-2.13.0+cpu.lms1-cp311-cp311-linux_x86_64.whl"
    own = sbom.of_wheel(older, target_for(None), [BASE], EPOCH)
    wheel = small_wheels.write(tmp_path, files={MEMBER: own})
    assert parse_name(wheel) != parse_name(Path(older))
    text = sbom.of_conda_package("pytorch-2.13.0-build.conda", "linux-64", wheel, "b" * 64, EPOCH)
    (made_of,) = sboms.Sbom(text).parts().values()
    assert sboms.properties(made_of)["file"] == wheel.name
    assert [row["name"] for row in sboms.Sbom(text).parts(made_of).values()] == ["torch"]


def test_a_wheel_with_a_broken_one_becomes_no_package(tmp_path: Path) -> None:
    wheel = small_wheels.write(tmp_path, files={MEMBER: b"{"})
    with pytest.raises(DamagedWheel, match="cannot be read"):
        build(wheel, tmp_path / "dist")
    assert not list((tmp_path / "dist").rglob("*"))
