"""The packages with CUDA's runtime, by CUDA version: patches/catalogue/cuda.toml."""

from __future__ import annotations

from pathlib import Path

from lmsbuild.catalogue.catalogue import Release, read_toml
from lmsbuild.errors import UnknownCuda
from lmsbuild.wheel.name import parse_name


def versions(patches: Path) -> list[str]:
    """The CUDA versions that the catalogue has packages for."""
    return sorted(read_toml(patches / "catalogue/cuda.toml"))


def has_library(patches: Path, version: str) -> bool:
    """Whether the packages are of this very version, and not of one whose headers serve."""
    return "headers" not in read_toml(patches / "catalogue/cuda.toml")[version]


def releases(patches: Path, version: str, machine: str) -> list[Release]:
    """The packages with the runtime of this CUDA version, for this kind of machine. Raises UnknownCuda."""
    table = read_toml(patches / "catalogue/cuda.toml")
    row = dict(table.get(version, {}))
    if headers := row.pop("headers", None):
        return releases(patches, headers, machine)
    wheels: dict[tuple[str, str], dict[str, str]] = {}
    for name, digest in row.items():
        parsed = parse_name(Path(name))
        if any(platform.endswith(f"_{machine}") for platform in parsed.platforms):
            wheels.setdefault((parsed.package, str(parsed.version)), {})[name] = digest
    if not wheels:
        raise UnknownCuda(
            f"the base wheel is for CUDA {version} on {machine}, but patches/catalogue/cuda.toml names packages for "
            f"{', '.join(sorted(table))} only: add them there, or give a wheel for one of these"
        )
    return [Release(package, number, known) for (package, number), known in wheels.items()]
