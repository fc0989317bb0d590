"""An SBOM as a document: CycloneDX 1.6 in JSON. Its number follows from what is in it, so that the same is equal to the byte."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from importlib import metadata

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from lmsbuild.errors import DamagedWheel
from lmsbuild.sbom.part import Part

_PREFIX = "large-model-support:"  # of our properties
_NO_NUMBER = uuid.UUID(int=0)


def write(whole: Part, seconds: int) -> bytes:
    """The document of something with all its parts; `seconds` since 1970 are its date."""
    bom = Bom()
    component = _component(whole)
    bom.register_dependency(component, _add(bom, whole.parts))
    return _text(bom, component, seconds)


def wrap(whole: Part, made_of: Part, inner: bytes, seconds: int) -> bytes:
    """The document of something that was made of a wheel, whose own document is `inner`. Raises DamagedWheel when that is none."""
    try:
        bom: Bom = Bom.from_json(json.loads(inner))  # type: ignore[attr-defined]
        wheel = bom.metadata.component
        if wheel is None:
            raise ValueError("it says nothing of the wheel itself")
        stated = {own.name.removeprefix(_PREFIX): own.value or "" for own in wheel.properties}
        (row,) = (row for row in bom.dependencies if row.ref == wheel.bom_ref)
        parts = [part for part in bom.components if part.bom_ref in row.dependencies_as_bom_refs()]
    except Exception as error:  # whatever the library makes of what is none
        raise DamagedWheel(
            f"the SBOM in {made_of.properties['file']} cannot be read ({error}): build the wheel again"
        ) from error
    bom.dependencies.discard(row)
    component, wheel = _component(whole), _component(replace(made_of, properties={**stated, **made_of.properties}))
    bom.components.add(wheel)
    bom.register_dependency(wheel, parts)
    bom.register_dependency(component, [wheel])
    return _text(bom, component, seconds)


def _add(bom: Bom, parts: Iterable[Part]) -> list[Component]:
    added = []
    for part in parts:
        component = _component(part)
        bom.components.add(component)
        bom.register_dependency(component, _add(bom, part.parts))
        added.append(component)
    return added


def _component(part: Part) -> Component:
    return Component(
        name=part.name,
        version=part.version or None,
        type=ComponentType(part.kind),
        bom_ref=part.purl or "@".join(filter(None, (part.name, part.version))),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else (),
        purl=PackageURL.from_string(part.purl) if part.purl else None,
        scope=ComponentScope.EXCLUDED if part.build_only else None,
        properties=[Property(name=_PREFIX + name, value=value) for name, value in part.properties.items()],
    )


def _text(bom: Bom, whole: Component, seconds: int) -> bytes:
    tool = Component(
        name="lmsbuild", version=metadata.version("lmsbuild"), type=ComponentType.APPLICATION, bom_ref="tool"
    )
    bom.metadata.tools = ToolRepository(components=[tool])
    bom.metadata.component = whole
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, timezone.utc)
    bom.serial_number = _NO_NUMBER
    bom.serial_number = uuid.uuid5(_NO_NUMBER, JsonV1Dot6(bom).output_as_string())
    return JsonV1Dot6(bom).output_as_string(indent=2).encode() + b"\n"
