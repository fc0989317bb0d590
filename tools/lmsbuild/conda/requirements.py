"""What a conda package has to require so that it gets what the wheel in it requires.

The wheel's own METADATA says what it needs; recipes/names.toml says which conda packages provide that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lmsbuild.catalogue.catalogue import Tag, read_toml
from lmsbuild.errors import BadSources, DamagedWheel, UnknownRequirement

_CUDA_GENERATION = re.compile(r"-cu\d+$")
_DEFAULT_LICENSE = "BSD-3-Clause"  # of wheels whose METADATA states none that a machine could read
_LICENSES = {"Apache 2.0": "Apache-2.0"}  # what METADATA states of old, as an SPDX expression


@dataclass(frozen=True)
class Metadata:
    """What a wheel says of itself."""

    requirements: tuple[str, ...]
    license: str  # an SPDX expression


@dataclass(frozen=True)
class Provider:
    """The conda packages that provide what a wheel requires."""

    conda: str  # "" where each extra is a package of its own, or nothing provides it
    version: str  # "stated", "series", "any" or "none"
    extras: Mapping[str, str]

    def package_names(self) -> list[str]:
        return [self.conda] if self.conda else sorted(self.extras.values())


def read_metadata(text: str) -> Metadata:
    headers = HeaderParser().parsestr(text)
    of_old = _LICENSES.get(headers.get("License", ""), _DEFAULT_LICENSE)
    return Metadata(tuple(headers.get_all("Requires-Dist", [])), headers.get("License-Expression", of_old))


def read_providers(recipes: Path) -> dict[str, Provider]:
    """The rows of names.toml, by the name of the package in the Python registry."""
    found = {}
    for name, row in read_toml(recipes / "names.toml").items():
        found[name] = Provider(row.get("conda", ""), row["version"], row.get("extras", {}))
        provider = found[name]
        useful = provider.version in ("stated", "series", "any") and provider.package_names()
        if not useful and (provider.version != "none" or provider.package_names()):
            raise BadSources(f"names.toml has a row for {name} that says nothing of use")
    return found


def unstated(file: Path, tag: Tag) -> dict[str, str]:
    """What a package of `tag` requires though its wheel does not say so, by requires.toml, by the conda package's name."""
    rows = read_toml(file) if file.exists() else {}
    return {
        name: row["requires"]
        for name, choices in rows.items()
        for row in choices
        if tag.is_within(row.get("since", ""), row.get("until", ""))
    }


def for_environment(text: bytes, providers: Mapping[str, Provider]) -> bytes:
    """METADATA without what no Python package meets in a conda environment, such as CUDA's libraries: pip would miss it."""
    head, blank, body = text.partition(b"\n\n")
    lines = [line for line in head.split(b"\n") if not _is_met_otherwise(line.decode(), providers)]
    return b"\n".join(lines) + blank + body


def _is_met_otherwise(line: str, providers: Mapping[str, Provider]) -> bool:
    key, _, value = line.partition(":")
    if key.lower() != "requires-dist":
        return False
    name = canonicalize_name(Requirement(value).name)
    found = [providers[known] for known in (name, _CUDA_GENERATION.sub("", name)) if known in providers]
    return bool(found) and found[0].version != "stated"


def conda_requirements(
    requirements: Iterable[str],
    providers: Mapping[str, Provider],
    environment: Mapping[str, str],
    extras: Iterable[str] = (),
) -> dict[str, str]:
    """The conda requirements, such as "sympy >=1.13.3", by the name of the conda package.

    `environment` are the markers of the interpreter and machine that the package is for; what the wheel's `extras` require
    is required, too. Raises UnknownRequirement.
    """
    wanted = ["", *extras]
    found: dict[str, set[str]] = {}
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise DamagedWheel(f"the wheel requires {text!r}, which is no requirement: download it again") from error
        if requirement.marker and not any(
            requirement.marker.evaluate({**environment, "extra": extra}) for extra in wanted
        ):
            continue
        provider = _provider(requirement, providers)
        for conda in _packages(requirement, provider):
            found.setdefault(conda, set()).update(_versions(requirement, provider))
    return {conda: f"{conda} {','.join(sorted(versions, key=_order))}".strip() for conda, versions in found.items()}


def marker_environment(python: str, machine: str) -> dict[str, str]:
    """What the markers of requirements see with CPython of this version on Linux."""
    version = python.rstrip("t")
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{version}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
    }


def _order(specifier: str) -> tuple[bool, str]:
    """Lower bounds first, as people write them."""
    return specifier.startswith("<"), specifier


def _provider(requirement: Requirement, providers: Mapping[str, Provider]) -> Provider:
    name = canonicalize_name(requirement.name)
    for candidate in (name, _CUDA_GENERATION.sub("", name)):
        if candidate in providers:
            return providers[candidate]
    raise UnknownRequirement(
        f"the wheel requires {name}, for which recipes/names.toml has no conda package: add a row to it, and a line to "
        "the recipe"
    )


def _packages(requirement: Requirement, provider: Provider) -> list[str]:
    if provider.conda:
        return [provider.conda]
    if provider.version == "none":
        return []
    unknown = sorted(requirement.extras - set(provider.extras))
    if unknown:
        raise UnknownRequirement(
            f"the wheel requires {requirement.name}[{unknown[0]}], for which recipes/names.toml has no conda package: add "
            "the extra to its row, and a line to the recipe"
        )
    return sorted(provider.extras[extra] for extra in requirement.extras)


def _versions(requirement: Requirement, provider: Provider) -> list[str]:
    stated = [str(specifier) for specifier in requirement.specifier]
    if provider.version == "stated":
        return stated
    if provider.version == "any":
        return []
    lowest = [Version(text.lstrip("=>~")) for text in stated if text.startswith(("==", ">=", "~="))]
    return [bound for version in lowest for bound in (f">={version}", f"<{version.major + 1}.0a0")]
