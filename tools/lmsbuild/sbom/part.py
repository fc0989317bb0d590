"""Something that is built, or that something is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """One row of an SBOM."""

    name: str
    version: str = ""
    kind: str = "library"  # as CycloneDX calls it
    sha256: str = ""
    purl: str = ""  # under which others know it
    build_only: bool = False  # whether nothing of it is in what is built
    properties: Mapping[str, str] = field(default_factory=dict)  # what no field of CycloneDX is for
    parts: tuple[Part, ...] = ()  # what it was made of
