"""What a wheel or a conda package was made of, and by what: its bill of materials (SBOM).

The same inputs give the same bytes. No folder, user or machine is named in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packageurl import PackageURL

from lmsbuild import command
from lmsbuild.catalogue.catalogue import Release
from lmsbuild.patch.patch import Patch
from lmsbuild.sbom.part import Part
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import Target
from lmsbuild.wheel.wheel import WheelFile, file_sha256

MEMBER = "sboms/large-model-support.cdx.json"  # below a wheel's dist-info folder, as PEP 770 has it
CONDA_MEMBER = "info/recipe/large-model-support.cdx.json"  # which clients neither install nor read
_FOLDER = re.compile(r"(?<![\w:/.])/[^\s()]+")


def wheel(file_name: str, sha256: str = "", *, build_only: bool = False) -> Part:
    """A wheel, by its name. Raises DamagedWheel when that is none."""
    name = parse_name(Path(file_name))
    purl = PackageURL("pypi", None, name.package, str(name.version), {"file_name": file_name})
    return Part(
        name=name.package,
        version=str(name.version),
        sha256=sha256,
        purl=purl.to_string(),
        build_only=build_only,
        properties={"file": file_name},
    )


def base_wheel(file_name: str, sha256: str, known: Mapping[str, str], sources: Sequence[Part]) -> Part:
    """The wheel that a graft starts from; `known` are the hashes of the catalogue, `sources` what the wheel was built from."""
    part = wheel(file_name, sha256)
    verified = {"in-catalogue": "true" if file_name in known else "false"}
    return replace(part, properties={**part.properties, **verified}, parts=tuple(sources))


def checkout(name: str, tag: str, address: str, commit: str) -> Part:
    """A framework's source tree, out of git."""
    purl = PackageURL("generic", None, name, tag, {"vcs_url": f"git+{address}@{commit}"})
    return Part(name, tag, purl=purl.to_string(), properties={"commit": commit})


def archive(file_name: str, sha256: str) -> Part:
    """An archive with source code."""
    return Part(file_name, kind="file", sha256=sha256)


def large_model_support(label: str, patch: Patch) -> Part:
    """Large Model Support, as the patch adds it: its hash is that of all patches in one file."""
    files = tuple(archive(path.name, file_sha256(path)) for path in patch.files)
    return Part("large-model-support", label, sha256=patch.digest, parts=files)


def headers(release: Release) -> Part:
    """A release whose headers alone were taken."""
    purl = PackageURL("pypi", None, release.package, release.version)
    return Part(release.package, release.version, purl=purl.to_string(), build_only=True)


def tools(compiler: Sequence[str]) -> list[Part]:
    """What builds: this tool, and the compiler with this command."""
    said = command.run([*compiler, "--version"]).text.splitlines()
    machine = command.run([*compiler, "-dumpmachine"]).text.strip()
    version = _FOLDER.sub("…", said[0].strip()) if said else "unknown"
    return [
        Part("C++ compiler", version, "application", build_only=True, properties={"target": machine}),
        Part("lmsbuild", metadata.version("lmsbuild"), "application", build_only=True),
    ]


def of_wheel(file_name: str, target: Target, parts: Sequence[Part], seconds: int) -> bytes:
    """The SBOM of a wheel; `seconds` since 1970 are its date."""
    from lmsbuild.sbom import document  # here, since few commands need it

    made = wheel(file_name)
    properties = {**made.properties, "python": target.python, "machine": target.machine}
    return document.write(replace(made, properties=properties, parts=tuple(parts)), seconds)


def of_conda_package(file_name: str, subdir: str, path: Path, sha256: str, seconds: int) -> bytes:
    """The SBOM of a conda package that was made of the wheel `path`: also says what is in the SBOM of that.

    Raises DamagedWheel when the wheel's own is none.
    """
    from lmsbuild.sbom import document

    name, version, build = file_name.removesuffix(".conda").rsplit("-", 2)
    purl = PackageURL("conda", None, name, version, {"build": build, "subdir": subdir, "type": "conda"})
    made = Part(name, version, purl=purl.to_string(), properties={"file": file_name, "platform": subdir})
    with WheelFile(path) as file:
        member = f"{file.dist_info}/{MEMBER}"
        inner = file.read(member) if member in file.members else None
    made_of = wheel(path.name, sha256)
    if inner is None:
        return document.write(replace(made, parts=(made_of,)), seconds)
    return document.wrap(made, made_of, inner, seconds)
