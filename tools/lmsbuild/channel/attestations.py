"""Attestations of packages, as a channel serves them (CEP 50): Sigstore bundles of what a publisher states (CEP 27).

`PACKAGE.sigs` is a JSON array of them. The index names its hash, and the channel keeps it under that hash, too, so that a
client with an older index finds what that one names. Bundles are added at the end and never leave. They are made, and their
signatures verified, by other tools; here each has to be about the package beside which it lies.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmsbuild.errors import BadAttestation
from lmsbuild.published import strict_json
from lmsbuild.published.regular_file import read_file

KEY = "attestations_sha256"  # in a package's record
LARGEST = 1 << 26  # bytes of the attestations of one package


def beside(package: Path) -> Path:
    return package.with_name(f"{package.name}.sigs")


def kept(package: Path, sha256: str) -> Path:
    """Where a channel has the attestations of that hash, which never change."""
    return package.with_name(f"{package.name}.sigs.{sha256}")


def joined(package: Path, record: Mapping[str, Any], given: Path) -> bytes:
    """The attestations of `package`, which a channel has, and behind them those in `given` that are new.

    `given` may be one bundle, as the tools that sign write it. Raises BadAttestation.
    """
    known, data = list[Any](), b""
    if KEY in record:
        known, data = _read(kept(package, record[KEY]), record["sha256"])
        if hashlib.sha256(data).hexdigest() != record[KEY]:
            raise BadAttestation(f"{kept(package, record[KEY])} is not what the index says: put back the one published")
    texts = set(map(_text, known))
    new = [bundle for bundle in _read(given, record["sha256"])[0] if _text(bundle) not in texts]
    return json.dumps([*known, *new], separators=(",", ":")).encode() if new else data


def _text(bundle: Any) -> str:
    """The same for equal bundles."""
    return json.dumps(bundle, sort_keys=True)


def check(package: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the attestations of a package in a channel."""
    if KEY not in record:
        if beside(package).exists():
            yield "has attestations that the index does not name: `lmsbuild channel publish` adds them"
        return
    for path in (kept(package, record[KEY]), beside(package)):
        try:
            found = hashlib.sha256(_read(path, record["sha256"])[1]).hexdigest()
        except BadAttestation as error:
            yield str(error)
        else:
            if found != record[KEY]:
                yield f"has attestations in {path.name} of sha256 {found}, the index says {record[KEY]}"


def _read(path: Path, sha256: str) -> tuple[list[Any], bytes]:
    """The bundles in a file, all of them about a package of that hash, and its bytes."""
    try:
        data = read_file(path, LARGEST)
        found = strict_json.parse(data)
        bundles = found if isinstance(found, list) else [found]
        stated = [strict_json.parse(base64.b64decode(bundle["dsseEnvelope"]["payload"])) for bundle in bundles]
        digests = [{subject["digest"]["sha256"] for subject in statement["subject"]} for statement in stated]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadAttestation(
            f"{path} is no Sigstore bundle with an attestation, nor an array of these ({error!r}): "
            "`conda sigstore attest` makes one"
        ) from error
    if not digests or not all(sha256 in digest for digest in digests):
        raise BadAttestation(f"{path} has an attestation of another file: make one of {sha256}, the package's sha256")
    return bundles, data
