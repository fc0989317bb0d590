"""What the catalogue says of a release, read off its official wheel and the registry."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lmsbuild import catalogue, generation, git, graft, ranged, series, symbols
from lmsbuild.catalogue import Tag
from lmsbuild.errors import BadRelease, BadSources, DamagedWheel, UnknownRelease
from lmsbuild.target import minor_of, python_of
from lmsbuild.wheel import WheelFile, parse_name

_COMMIT = re.compile(rb"^git_version(?:\s*:[^=]*)?\s*=\s*['\"]([0-9a-f]{40})['\"]", re.MULTILINE)
_STANDARD = re.compile(rb"\b(?:CXX_STANDARD |cxx_std_)(\d\d)\b")
_OLDEST_STANDARD = 14  # what the files that the patch adds need


def wheels(package: str, version: str, oldest: int) -> dict[str, str]:
    """The sha256 of the release's official wheels for Linux and Python 3.`oldest` or newer, by file name.

    Raises UnknownRelease or DownloadFailed.
    """

    def wanted(name: str) -> bool:
        try:
            parsed = parse_name(Path(name))
        except DamagedWheel:
            return False
        pythons = [python_of(tag.abi) for tag in parsed.tags]
        return (
            parsed.version.public == version
            and all("linux" in platform for platform in parsed.platforms)
            and all(python is not None and minor_of(python) >= oldest for python in pythons)
        )

    found = ranged.hashes(package, wanted)
    if not found:
        raise UnknownRelease(
            f"the registry lists no wheel of {package} {version} for Linux: check the version with "
            f"`pip index versions {package}`"
        )
    return {name: found[name] for name in sorted(found)}


def read(patches: Path, framework: str, name: str, known: Mapping[str, str], wheel: WheelFile) -> Tag:
    """The row of a release, by one of its official wheels; `known` are the sha256 of all of them.

    Raises BadRelease when the wheel does not say what is needed, BadSources when an edit does not fit its files.
    """
    package = catalogue.package(patches, framework)
    draft = Tag(
        package=package,
        version=name.removeprefix("v"),
        wheels=dict(known),
        framework=framework,
        name=name,
        commit=_commit(wheel, package),
        cuda="",
        abi="",
        standard=_standard(wheel),
        generation=_generation(patches, framework, wheel),
        supports=(),
        trained="",
        blobs={},
        records={wheel.path.name: hashlib.sha256(wheel.read(f"{wheel.dist_info}/RECORD")).hexdigest()},
    )
    description = series.read_series(patches, draft).graft
    cuda = graft.cuda_version(wheel, draft, description)
    return replace(
        draft,
        cuda=cuda,
        abi=_abi(wheel, description.abi_library),
        supports=("cpu", "cuda") if cuda else ("cpu",),
        blobs=_blobs(patches, draft, wheel),
    )


def _commit(wheel: WheelFile, package: str) -> str:
    stated = _COMMIT.search(wheel.read(f"{package}/version.py"))
    if stated is None:
        raise BadRelease(f"{wheel.path.name} does not state its commit (git_version in {package}/version.py)")
    return stated[1].decode()


def _standard(wheel: WheelFile) -> str:
    config = next((name for name in wheel.members if name.endswith("/TorchConfig.cmake")), None)
    stated = [int(number) for number in _STANDARD.findall(wheel.read(config))] if config else []
    if not stated:
        raise BadRelease(f"{wheel.path.name} does not state its C++ standard (CXX_STANDARD in TorchConfig.cmake)")
    return f"c++{max(*stated, _OLDEST_STANDARD)}"


def _generation(patches: Path, framework: str, wheel: WheelFile) -> str:
    """Looks into headers only: of a library, that it is there is all that counts."""
    known = series.read_generations(patches, framework)

    def text(path: str) -> str | None:
        if path not in wheel.members:
            return None
        return wheel.read(path).decode(errors="replace") if path.endswith(".h") else ""

    found = generation.detect(known, text)
    if found is None:
        raise BadRelease(f"{wheel.path.name} is of no generation that series.toml describes: describe it there")
    return found.name


def _abi(wheel: WheelFile, library: str) -> str:
    with tempfile.TemporaryDirectory(prefix="lmsbuild-release-") as folder:
        file = Path(folder) / Path(library).name
        file.write_bytes(wheel.read(library))
        return symbols.abi(file)


def _blobs(patches: Path, tag: Tag, wheel: WheelFile) -> dict[str, str]:
    """The hash of each file that the edits for this tag are for; that they fit is found out on the way."""
    edits = series.read_edits(patches, tag)
    files = {}
    for path in sorted({edit.path for edit in edits}):
        if path not in wheel.members:
            raise BadSources(f"edits.toml edits {path} for {tag.name}, but {wheel.path.name} has no such file")
        files[path] = wheel.read(path)
    try:
        series.apply_edits(edits, files)
    except BadSources as error:
        raise BadSources(
            f"{error}, in the files of {tag.name}: end that edit with `until` in edits.toml, and add one that fits"
        ) from error
    return {path: git.blob_hash(data) for path, data in files.items()}
