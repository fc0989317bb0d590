"""Attestations for tests: in form, and signed by nobody, which is all that a channel looks at."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from lmsbuild.channel import attestations, channel
from stand_ins import SUBDIR


def bundle(package: Path, who: str) -> dict[str, object]:
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": package.name, "digest": {"sha256": hashlib.sha256(package.read_bytes()).hexdigest()}}],
        "predicateType": "https://schemas.conda.org/attestations-publish-1.schema.json",
        "predicate": {"targetChannel": f"https://example.org/{who}"},
    }
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    envelope = {"payload": payload, "payloadType": "application/vnd.in-toto+json", "signatures": [{"sig": ""}]}
    return {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": envelope}


def attest(package: Path, *bundles: object) -> None:
    attestations.beside(package).write_text(json.dumps(bundles[0] if len(bundles) == 1 else bundles, indent=2))


def served(folder: Path, package: Path) -> list[object]:
    """What a client finds that goes by the index."""
    named = channel.read_index(folder / SUBDIR)[package.name][attestations.KEY]
    data = attestations.kept(folder / SUBDIR / package.name, named).read_bytes()
    assert hashlib.sha256(data).hexdigest() == named
    assert attestations.beside(folder / SUBDIR / package.name).read_bytes() == data
    return json.loads(data)
