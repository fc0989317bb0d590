"""Reads the SBOM of a wheel or of a package, after the library's own validator has found nothing in it."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from lmsbuild.sbom import sbom

_PREFIX = "large-model-support:"
_FOLDER = re.compile(r"(?<![\w:/.])/\w")


class Sbom:
    """A valid SBOM that names no folder."""

    def __init__(self, text: bytes) -> None:
        from cyclonedx.schema import SchemaVersion  # five seconds, a quarter of collecting all tests
        from cyclonedx.validation.json import JsonStrictValidator

        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
        self.document: dict[str, Any] = json.loads(text)
        assert not _FOLDER.search(text.decode())
        self.whole: dict[str, Any] = self.document["metadata"]["component"]
        self._rows = {row["bom-ref"]: row for row in [self.whole, *self.document["components"]]}
        self._made_of = {row["ref"]: row.get("dependsOn", []) for row in self.document["dependencies"]}
        assert set(self._made_of) == set(self._rows)

    def parts(self, row: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        """What something, or all of it, was made of, by name."""
        return {self._rows[ref]["name"]: self._rows[ref] for ref in self._made_of[(row or self.whole)["bom-ref"]]}


def of_wheel(path: Path) -> Sbom:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f".dist-info/{sbom.MEMBER}"))
        return Sbom(archive.read(name))


def sha256(row: dict[str, Any]) -> str:
    (found,) = row["hashes"]
    assert found["alg"] == "SHA-256"
    return str(found["content"])


def properties(row: dict[str, Any]) -> dict[str, str]:
    return {each["name"].removeprefix(_PREFIX): each["value"] for each in row.get("properties", ())}
