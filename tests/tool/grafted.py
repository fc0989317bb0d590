"""What has to hold of every wheel that the tool made out of an official one."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from hardened import fortified, lacking
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.elf import symbols
from lmsbuild.patch import series
from lmsbuild.patch.patch import find_patch
from lmsbuild.sbom import sbom
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.wheel import WheelFile

# What is loaded with a framework, by the wheel itself or by what it requires.
_LOADED = {"libtorch_cpu.so", "libtorch_lms.so", "libc10.so", "libc10_cuda.so", "libtensorflow_framework.so.2"} | {
    f"libcudart.so.{version}" for version in ("11.0", "12", "13")
}


def stated_version(wheel: Path) -> str:
    """The version that torch/version.py states: of a CUDA wheel, unlike its name, with the CUDA version."""
    with zipfile.ZipFile(wheel) as archive:
        (version,) = re.findall(r"^__version__ = '(.*)'$", archive.read("torch/version.py").decode(), re.MULTILINE)
    return str(version)


def check_differences(built_wheel: Path, base_wheel: Path, tag: Tag, patches: Path, libraries: set[str]) -> None:
    """The wheel is the official one but for the patch, the libraries, the version and what describes them."""
    patch, graft = find_patch(patches, tag), series.read_series(patches, tag).graft
    generated = {name for export in graft.exports for name in export.modules} | set(graft.messages)
    edited = {graft.member(path) for path in patch.edited} | generated | {graft.version_file} - {""}
    with WheelFile(built_wheel) as built, WheelFile(base_wheel) as base:
        before, after = base.record(), built.record()
        old, new = f"{base.dist_info}/", f"{built.dist_info}/"
        moved = {name.replace(old, new, 1): row for name, row in before.items()}
        added = {member for path in patch.added if (member := graft.member(path))} | libraries
        assert set(after) - set(moved) == {*added, f"{new}{sbom.MEMBER}"}
        assert set(moved) - set(after) == set()
        changed = {name for name in moved if moved[name] != after[name]}
        assert changed - {f"{new}WHEEL"} == {*edited, f"{new}METADATA"}
        for name, row in moved.items():
            assert base.members[name.replace(new, old, 1)].external_attr == built.members[name].external_attr, row


def check_platform(built_wheel: Path, libraries: set[str], folder: Path) -> None:
    """Name and WHEEL file claim the same platform, and the libraries need no newer one."""
    with zipfile.ZipFile(built_wheel) as archive:
        files = [Path(archive.extract(name, folder)) for name in libraries]
        wheel_file = next(name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        tags = {line[5:] for line in archive.read(wheel_file).decode().splitlines() if line.startswith("Tag: ")}
    name = parse_name(built_wheel)
    assert {tag.lower() for tag in tags} == {str(tag) for tag in name.tags}
    versions = [version for file in files for version in symbols.needed_versions(file, _LOADED)]
    for platform in name.platforms:
        (machine,) = re.findall(r"^manylinux(?:_2_)?\d+_(\w+)$", platform)
        need = symbols.oldest_glibc(versions, machine)
        assert need.minor is not None
        assert int(platform.split("_")[2]) >= need.minor


def check_names_no_folder(built_wheel: Path, libraries: set[str]) -> None:
    """The libraries do not say where they were built."""
    with zipfile.ZipFile(built_wheel) as archive:
        for name in libraries:
            data = archive.read(name)
            assert b".lmsbuild-" not in data
            assert str(Path.home()).encode() + b"/" not in data


def check_hardened(built_wheel: Path, libraries: set[str], folder: Path) -> None:
    """The libraries were built with the flags against attacks."""
    with zipfile.ZipFile(built_wheel) as archive:
        files = [Path(archive.extract(name, folder)) for name in libraries]
    assert {file.name: lacking(file) for file in files} == {file.name: [] for file in files}
    assert any(map(fortified, files))


def dynamic(library: Path) -> dict[str, list[str]]:
    """What the library tells the loader: the values of DT_NEEDED, DT_SONAME, DT_RUNPATH and the like, by kind."""
    found: dict[str, list[str]] = {}
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        for tag in section.iter_tags():
            kind = tag.entry.d_tag
            if kind in ("DT_NEEDED", "DT_SONAME", "DT_RUNPATH", "DT_RPATH"):
                found.setdefault(kind, []).append(getattr(tag, kind.removeprefix("DT_").lower()))
    return found
