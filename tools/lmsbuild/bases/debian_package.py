"""Debian's packages of a framework as a base for the graft: the same files as a wheel, for machines that have no official one.

Debian has a framework's libraries, its headers and its Python files in different places, and in packages of their own what
others wrote. A wheel has all of them in one folder.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
from email.parser import HeaderParser
from pathlib import Path

from lmsbuild import report
from lmsbuild.bases import site_packages
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.catalogue.debian_builds import DebianBuild
from lmsbuild.errors import BadSources
from lmsbuild.fetch import apt

LABEL = "debian.cpu"  # of the version: whose build it is, and that Debian has none for CUDA
_PYTHON = "usr/lib/python3/dist-packages"
_SYSTEM = re.compile(r"(?:ld64|ld-linux-\w+|lib(?:c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp))\.so\.\d+")  # conda has these
_COMMON = re.compile(r"/usr/share/common-licenses/([\w.-]*\w)")
_SOURCES = "Their sources are in Debian's archive, under these names and versions (`apt-get source`)."


def as_wheel(build: DebianBuild, tag: Tag, libraries: str, cache: Path, folder: Path) -> Path:
    """Writes Debian's build of the tag as a wheel into `folder` and returns it; `libraries` is the folder for them in a wheel.

    Raises NotDebian, SourceUnreachable, or BadSources when the row of debian.toml does not fit what Debian has.
    """
    report.stage(f"packages of Debian {build.suite}")
    fetched = apt.packages(build.packages, build.suite, build.architecture, cache)
    tree, site = fetched / apt.TREE, folder / "site"
    report.stage("base package")
    package = libraries.split("/")[0]
    _copy_python(tree, site, package, build)
    for name in build.headers:
        shutil.copytree(tree / "usr/include" / name, site / package / "include" / name)
    _add_libraries(tree, site, libraries, build)
    site_packages.relink(site, libraries, build.unused)
    dist_info = _describe(fetched, site, tag, build)
    return site_packages.pack(site, dist_info, build.interpreter, f"linux_{build.machine}", folder)


def _copy_python(tree: Path, site: Path, package: str, build: DebianBuild) -> None:
    """Copies the Python packages, with what their links lead to, but the files that official wheels do not have."""

    def unwanted(folder: str, names: list[str]) -> list[str]:
        below = Path(folder).relative_to(tree / _PYTHON)
        paths = {name: (below / name).relative_to(package).as_posix() for name in names if package in below.parts}
        return [name for name, path in paths.items() if any(fnmatch.fnmatch(path, text) for text in build.without)]

    for top in sorted((tree / _PYTHON).iterdir()):
        if top.is_dir() and not top.name.endswith((".egg-info", ".dist-info")):
            shutil.copytree(top, site / top.name, ignore=unwanted)


def _add_libraries(tree: Path, site: Path, libraries: str, build: DebianBuild) -> None:
    """Puts what the framework's libraries need beside them, and what that needs. Raises BadSources when it is nowhere."""
    there = {path.name: path for path in sorted(tree.rglob("*.so*")) if path.is_file()}
    todo = [elf for path in sorted(site.rglob("*")) if path.is_file() and (elf := site_packages.read(path))]
    known = {*build.unused, *(elf.name for elf in todo)}
    while todo:
        elf = todo.pop()
        for name in elf.needed:
            if name in known or _SYSTEM.fullmatch(name):
                continue
            if name not in there:
                raise BadSources(
                    f"{elf.name or 'the framework'} needs {name}, which is in none of the packages that debian.toml names for "
                    f"{build.tag}: add the one that has it, or the library to those that are unused"
                )
            known.add(name)
            target = site / libraries / name
            shutil.copyfile(there[name], target)
            target.chmod(0o755)
            if found := site_packages.read(target):
                todo.append(found)


def _describe(fetched: Path, site: Path, tag: Tag, build: DebianBuild) -> str:
    """Writes the folder that says what this is, with the licences of all, and returns its name. Raises BadSources."""
    version = f"{tag.version}+{LABEL}"
    folder = site / f"{tag.package}-{version}.dist-info"
    packages = (fetched / apt.LISTED).read_text()
    _copy_licenses(fetched / apt.TREE, folder / "licenses/debian", build)
    (folder / apt.LISTED).write_text(packages)
    _state_version(site / tag.package / "version.py", version)
    (info,) = (fetched / apt.TREE / _PYTHON).glob(f"{tag.package}-*.egg-info")
    stated = HeaderParser().parsestr((info / "PKG-INFO").read_text())
    files = sorted(path.relative_to(folder / "licenses").as_posix() for path in folder.rglob("debian/*/*"))
    own = next(line for line in packages.splitlines() if line.startswith(f"{build.framework[0]} "))
    lines = [
        *("Metadata-Version: 2.4", f"Name: {tag.package}", f"Version: {version}", f"Summary: {stated['Summary']}"),
        *(f"Home-page: {stated['Home-page']}", f"License-Expression: {build.license}"),
        *(f"License-File: {name}" for name in files),
        *(f"Requires-Dist: {name}" for name in build.needs),
        *("", f"Built by Debian ({build.suite}, {build.architecture}): {own}. {apt.LISTED} lists what it was made of."),
        _SOURCES,
    ]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    tags = f"Tag: {build.interpreter}-{build.interpreter}-linux_{build.machine}"
    (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: lmsbuild\nRoot-Is-Purelib: false\n{tags}\n")
    shutil.copyfile(info / "entry_points.txt", folder / "entry_points.txt")
    return folder.name


def _copy_licenses(tree: Path, folder: Path, build: DebianBuild) -> None:
    """Copies each package's file of copyrights, and the texts that those refer to. Raises BadSources when one is missing."""
    named: set[str] = set()
    for package in (*build.framework, *build.beside):
        source, target = tree / "usr/share/doc" / package / "copyright", folder / package / "copyright"
        if not source.is_file():
            raise BadSources(f"{package} has no {source.relative_to(tree)}: add the package that has it to debian.toml")
        target.parent.mkdir(parents=True)
        shutil.copyfile(source, target)
        named.update(_COMMON.findall(target.read_text()))
    (folder / "common").mkdir()
    for name in sorted(named):
        shutil.copyfile(tree / "usr/share/common-licenses" / name, folder / "common" / name)


def _state_version(file: Path, version: str) -> None:
    """Debian's own file says what the release was called while it was written."""
    text, count = re.subn(r"(?m)^__version__ = .*$", f"__version__ = '{version}'", file.read_text())
    if count != 1:
        raise BadSources(f"{file.name} of Debian's package does not set __version__ in one line")
    file.write_text(text)
