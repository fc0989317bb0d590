"""What the catalogue says of a release, read off its official wheel and the registry."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lmsbuild import git_command
from lmsbuild.catalogue import catalogue, generation
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.elf import symbols
from lmsbuild.errors import BadRelease, BadSources, DamagedWheel, UnknownRelease
from lmsbuild.fetch import http_requests, ranged
from lmsbuild.graft import graft
from lmsbuild.patch import edits, series
from lmsbuild.patch.series import Graft
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import machine_of, minor_of, python_of, target_for
from lmsbuild.wheel.wheel import WheelFile

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
            parsed.package == package
            and parsed.version.public == version
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
    packages = catalogue.packages(patches, framework)
    draft = Tag(
        package=packages[0],
        packages=packages,
        version=name.removeprefix("v"),
        wheels=dict(known),
        framework=framework,
        name=name,
        commit="",
        cuda="",
        abi="",
        standard="",
        generation=_generation(patches, framework, wheel),
        supports=(),
        trained="",
        blobs={},
        records={wheel.path.name: hashlib.sha256(wheel.read(f"{wheel.dist_info}/RECORD")).hexdigest()},
    )
    description = series.read_series(patches, draft).graft
    graft.check_complete(wheel, description)
    draft = replace(
        draft,
        commit=_commit(wheel, description),
        abi=_abi(wheel, description.abi_library),
        standard=_standard(wheel, description),
        blobs=_blobs(patches, draft, description, wheel),
    )
    return _with_cuda(draft, description, graft.cuda_version(wheel, description))


def of_main_package(patches: Path, tag: Tag) -> Tag:
    """The row with what only the wheels of its main package say: the CUDA version. For a row that was read off another's.

    Only the file that states it is fetched, where the registry serves parts of a file. Raises DownloadFailed.
    """
    description = series.read_series(patches, tag).graft
    names = catalogue.of_package(tag, tag.packages[0]).wheels
    running = [name for name in names if name.endswith(f"_{target_for(None).machine}.whl")]
    address = ranged.locate(tag.packages[0], running)
    with ranged.open_address(address) as file, WheelFile(Path(http_requests.file_name(address)), file) as wheel:
        return _with_cuda(tag, description, graft.cuda_version(wheel, description))


def of_builds(patches: Path, tag: Tag) -> Tag:
    """The row without the wheels that hold no build of the framework, but only require a package that does.

    One wheel of each package and kind of machine tells; the file lists of those are fetched. Raises DownloadFailed.
    """
    description = series.read_series(patches, tag).graft
    groups: dict[tuple[str, str], list[str]] = {}
    for name in tag.wheels:
        parsed = parse_name(Path(name))
        groups.setdefault((parsed.package, machine_of(parsed.platforms[0])), []).append(name)
    if len(groups) == 1:
        return tag  # the row was read off one of them
    links = {package: ranged.links(package) for package, _ in groups}
    found: dict[str, str] = {}
    for (package, _), names in groups.items():
        address = ranged.locate(package, names, links[package])
        with ranged.open_address(address) as file, WheelFile(Path(http_requests.file_name(address)), file) as wheel:
            if description.abi_library in wheel.members:
                found.update({name: tag.wheels[name] for name in names})
    return replace(tag, wheels={name: found[name] for name in sorted(found)})


def _with_cuda(tag: Tag, description: Graft, cuda: str) -> Tag:
    """The row of a release for this CUDA version: its tensors can be paged if the graft has something for them."""
    pages = cuda and any(library.cuda or library.cuda_sources for library in description.libraries)
    return replace(tag, cuda=cuda, supports=("cpu", "cuda") if pages else ("cpu",))


def _commit(wheel: WheelFile, description: Graft) -> str:
    stated = description.states.commit.read(wheel)
    if not stated:
        raise BadRelease(f"{wheel.path.name} does not state its commit (in {description.states.commit})")
    return stated[0]


def _standard(wheel: WheelFile, description: Graft) -> str:
    if description.standard:
        return description.standard
    where = description.states.standard
    stated = [int(number) for number in where.read(wheel)] if where else []
    if not stated:
        raise BadRelease(f"{wheel.path.name} does not state its C++ standard (in {where})")
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


def _blobs(patches: Path, tag: Tag, description: Graft, wheel: WheelFile) -> dict[str, str]:
    """The hash of each file that the edits for this tag are for; that they fit is found out on the way."""
    own = edits.read_edits(patches, tag)
    files = {}
    for path in sorted({edit.path for edit in own}):
        member = description.member(path)
        if member not in wheel.members:
            raise BadSources(f"edits.toml edits {path} for {tag.name}, but {wheel.path.name} has no such file")
        files[path] = wheel.read(member)
    try:
        edits.apply_edits(own, files)
    except BadSources as error:
        raise BadSources(
            f"{error}, in the files of {tag.name}: end that edit with `until` in edits.toml, and add one that fits"
        ) from error
    return {path: git_command.blob_hash(data) for path, data in files.items()}
