"""Makes a patched wheel out of the official one: verify, patch, compile, put together."""

from __future__ import annotations

import platform
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from lmsbuild import git_command, report, source_date
from lmsbuild.catalogue.catalogue import Tag, find_tag
from lmsbuild.elf import symbols
from lmsbuild.errors import (
    BadRelease,
    BadSources,
    DamagedWheel,
    DownloadFailed,
    UnknownCuda,
    WrongVersion,
    disk_failures,
)
from lmsbuild.fetch import blobs, cuda, download, http_requests, ranged
from lmsbuild.graft import compilation, config_message, readback
from lmsbuild.patch import api_modules
from lmsbuild.patch.patch import Patch, apply_to_folder, find_patch
from lmsbuild.patch.series import Graft, Library, oldest_python, read_series
from lmsbuild.sbom import sbom
from lmsbuild.sbom.part import Part
from lmsbuild.wheel.archive import ArchiveWriter
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import Target, glibc_minor, target_for
from lmsbuild.wheel.wheel import WheelFile, record_hash, record_text
from lmsbuild.workspace import workspace

_TAG = re.compile(r"(?i:Tag):[ \t]*([\w.]+)-([\w.]+)-[\w.]+\s*")  # a line of WHEEL
_DATA = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")  # where installers put what comes after it beside the rest


@dataclass(frozen=True)
class Options:
    """One build."""

    tag: Tag
    target: Target
    patches: Path
    cache: Path
    output: Path
    base_wheel: Path | None  # None: fetch it
    sources: tuple[Part, ...] = ()  # what the base wheel was built from, if that was here


@dataclass(frozen=True)
class Identity:
    """The names under which the patched wheel is known."""

    version: Version
    old_dist_info: str
    new_dist_info: str
    file_name: str
    platforms: tuple[str, ...]


def build(options: Options) -> Path:
    """Builds the patched wheel and returns its file. Nothing appears under the final name until it is complete."""
    with report.stages(), disk_failures(options.output, options.cache):
        return _build(options)


def base_wheel(tag: Tag, target: Target, cache: Path, given: Path | None) -> InputFile:
    """The base wheel's file, open: the one that was given, or the registry's. `download.check_known` checks its contents."""
    if given is None:
        return download.open_wheel(tag, target, cache)
    check_identity(given, tag, target)
    return InputFile(given)


def originals(
    patches: Path, tag: Tag, cache: Path, given: Path | None, links: Sequence[ranged.Link] | None = None
) -> dict[str, bytes]:
    """The files that the patch of `tag` edits, by path: as `read_members`, which see. They are kept in the cache."""
    kept = blobs.load(cache, tag.blobs) if given is None else None
    if kept is None:
        members = edited_members(patches, tag)
        read = read_members(tag, members.values(), cache, given, links)
        kept = {path: read[name] for path, name in members.items()}
        blobs.store(cache, tag.blobs, kept)
    return kept


def edited_members(patches: Path, tag: Tag) -> dict[str, str]:
    """What the files that the patch of `tag` edits are called in the wheel, by path. Raises BadSources."""
    description = read_series(patches, tag).graft
    found = {}
    for path in tag.blobs:
        member = description.member(path)
        if member is None:
            raise BadSources(f"edits.toml edits {path}, which is not in the wheel, by `install` in series.toml")
        found[path] = member
    return found


def read_members(
    tag: Tag, names: Iterable[str], cache: Path, given: Path | None, links: Sequence[ranged.Link] | None = None
) -> dict[str, bytes]:
    """Files out of an official wheel of `tag`, by path.

    Unless a wheel is given only these files are fetched, where the registry serves parts of a file. Nothing but the
    archive's checksums vouches for them: the caller has to know a hash of each. `links` are the package's, for
    a caller who asks for many tags.
    """
    names = list(names)
    if given is None:
        try:
            address = ranged.locate(tag.package, tag.wheels, links)
            with (
                ranged.open_address(address) as file,
                WheelFile(Path(http_requests.file_name(address)), file) as wheel,
            ):
                return {name: wheel.read(name) for name in names}
        except DownloadFailed as error:
            report.note(f"{error}; fetching the whole wheel")
    with base_wheel(tag, target_for(None), cache, given) as base:
        download.check_known(tag, base)
        with WheelFile(base) as wheel:
            return {name: wheel.read(name) for name in names}


def check_identity(file: Path, tag: Tag, target: Target) -> None:
    """Raises WrongVersion or WrongPlatform when the wheel's name is not that of one of `tag` for `target`, or DamagedWheel."""
    name = parse_name(file)
    if name.package not in tag.packages or name.version.public != tag.version:
        needed = " or ".join(tag.packages)
        raise WrongVersion(
            f"{file.name} is {name.package} {name.version}, but {tag.name} needs {needed} {tag.version}: "
            "give a wheel of that package and version, or none, to have it fetched"
        )
    if name.is_patched:
        raise WrongVersion(f"{file.name} is patched already: give the official wheel")
    target.check(name, file.name)


def check_complete(wheel: WheelFile, graft: Graft) -> None:
    """Raises BadRelease when the wheel has none of the framework's libraries, but only requires a package that has them."""
    if graft.abi_library not in wheel.members:
        raise BadRelease(
            f"{wheel.path.name} has no {graft.abi_library}: it holds no build of the framework, but requires a package "
            "that does. Give a wheel of that one with --base"
        )


@dataclass(frozen=True)
class Compiled:
    """What a build has made before the wheel is written."""

    tree: compilation.Tree
    graft: Graft
    patch: Patch
    edited: Mapping[str, bytes]  # files of the wheel that are in no source tree, as the patched one has them, by name
    built: Mapping[str, Path]  # the files of the libraries that the wheel gets, by name
    identity: Identity
    corrected: Mapping[str, tuple[str, str]]  # hash and size of members of which the wheel's RECORD says something else


def _build(options: Options) -> Path:
    compilation.compiler()  # before minutes of work, not after; and so is the next
    source_date.chosen()
    options.target.check_python(oldest_python(options.patches, options.tag.framework))
    report.stage("base wheel")
    with ExitStack() as stack:
        if options.base_wheel:
            base = stack.enter_context(base_wheel(options.tag, options.target, options.cache, options.base_wheel))
            scratch = stack.enter_context(workspace(options.output))
        else:  # hashed while it is copied
            scratch = stack.enter_context(workspace(options.output))
            base = stack.enter_context(download.open_wheel(options.tag, options.target, options.cache, scratch))
        digest = download.check_known(options.tag, base, scratch)
        wheel = stack.enter_context(WheelFile(base))
        compiled = compile_graft(options, wheel, scratch)
        report.stage("graft")
        changed = _changed_files(compiled.graft, compiled.tree.patched, list(compiled.patch.result))
        changed.update(compiled.edited)
        changed.update({name: file.read_bytes() for name, file in compiled.built.items()})
        changed[f"{wheel.dist_info}/{sbom.MEMBER}"] = _sbom(options, wheel, digest, compiled)
        finished = scratch / compiled.identity.file_name
        copied = _write(wheel, changed, compiled, finished)
        target = options.output / finished.name
        readback.check_and_publish(finished, copied, target)
    return target


def _sbom(options: Options, wheel: WheelFile, digest: str, compiled: Compiled) -> bytes:
    graft, tag, runtime = compiled.graft, options.tag, compiled.tree.cuda
    parts = [
        sbom.base_wheel(wheel.path.name, digest, tag.wheels, options.sources),
        sbom.large_model_support(graft.label, compiled.patch),
        *sbom.tools(compilation.compiler()),
        *(sbom.wheel(name, known, build_only=True) for name, known in (runtime.wheels if runtime else {}).items()),
    ]
    if graft.headers_of:
        parts.append(sbom.headers(find_tag(options.patches, graft.headers_of, tag.framework)))
    seconds = source_date.of(wheel.members[f"{wheel.dist_info}/RECORD"].date_time)
    return sbom.of_wheel(compiled.identity.file_name, options.target, parts, seconds)


def compile_graft(options: Options, wheel: WheelFile, scratch: Path) -> Compiled:
    """Verifies the base wheel, applies the patch to its files, and compiles and links what the patch adds.

    Every check of a build is made here; the wheel is then only written.
    """
    tag = options.tag
    graft = read_series(options.patches, tag).graft
    patch = find_patch(options.patches, tag)
    check_identity(wheel.path, tag, options.target)
    check_complete(wheel, graft)
    if wheel.path.name not in tag.wheels:  # what upstream published is what installers take
        wheel.check_installable()
    libraries = fitting_libraries(graft, wheel)
    runtime = _cuda_runtime(wheel, graft, libraries, options, scratch)
    tree = compilation.Tree(scratch / "patched", scratch / "base", runtime, objects=options.cache / "objects")
    report.stage("verify")
    corrected = _verify(wheel, tag, graft, libraries, tree, patch.edited)
    _check_catalogue(wheel, graft, tag, tree)
    version = _version(wheel, graft)
    edited = _edited_files(wheel, graft, version)
    tree = replace(tree, cuda=_own_runtime(wheel, graft, options.target, tree, scratch))
    if any(library.cuda_sources for library in libraries):
        _take_headers(graft, options, tree)
    report.stage("patch")
    apply_to_folder(patch, tree.patched)
    report.stage("compile")
    steps = len(compilation.units(libraries)) + len(libraries)
    with report.progress("compile", steps) as show:
        built = compilation.build_libraries(libraries, graft, tag.standard, tree, scratch, show)
    provided = {name for library in libraries for name in library.links_with}
    if tree.cuda and tree.cuda.library:
        provided.add(tree.cuda.library.name)
    identity = _identity(wheel, version, _platforms(wheel, built.values(), provided, options.target))
    return Compiled(tree, graft, patch, edited, built, identity, corrected)


def fitting_libraries(graft: Graft, wheel: WheelFile) -> list[Library]:
    """The libraries of the graft that this wheel gets, with the sources that each has for it."""
    fitting = [library for library in graft.libraries if not library.requires or library.requires in wheel.members]
    if any(library.cuda_sources for library in fitting) and not cuda_version(wheel, graft):
        return [replace(library, cuda_sources=()) for library in fitting]
    return fitting


def cuda_version(wheel: WheelFile, graft: Graft) -> str:
    """The CUDA version of a wheel, as it states it; empty when it has no CUDA. Raises UnknownCuda."""
    if graft.cuda_library and graft.cuda_library not in wheel.members:
        return ""
    stated = graft.states.cuda.read(wheel)
    if not stated and graft.cuda_library:
        raise UnknownCuda(f"the base wheel has CUDA libraries, but states no CUDA version (in {graft.states.cuda})")
    return stated[0] if stated else ""


def _check_catalogue(wheel: WheelFile, graft: Graft, tag: Tag, tree: compilation.Tree) -> None:
    """A wheel is built with the CUDA version and the C++ ABI that it has itself. If the catalogue knows the wheel, what
    it says of them has to be true: raises BadSources when it is not. Wheels without CUDA are other builds.
    """
    version = cuda_version(wheel, graft)
    abi = symbols.abi(tree.base / graft.abi_library)
    for what, found, stated in (("CUDA version", version, tag.cuda), ("C++ ABI", abi, tag.abi)):
        if not version or found == stated:
            continue
        if wheel.path.name in tag.wheels:
            raise BadSources(
                f"the {what} of {wheel.path.name} is {found}, but tags.toml says {stated or 'none'} for {tag.name}: read it "
                f"anew with `lmsbuild tag add {tag.framework} {tag.name} --update`"
            )
        report.note(f"the {what} of {wheel.path.name} is {found}, not {stated or 'none'} as of the official wheel")


def _cuda_runtime(
    wheel: WheelFile, graft: Graft, libraries: list[Library], options: Options, scratch: Path
) -> cuda.Runtime | None:
    if not any(library.cuda for library in libraries):
        return None
    report.stage("CUDA headers")
    return cuda.unpack(options.patches, cuda_version(wheel, graft), options.cache, scratch / "cuda")


def _take_headers(graft: Graft, options: Options, tree: compilation.Tree) -> None:
    """Puts the headers that the wheel lacks among its own. Raises BadSources when one is not what series.toml says."""
    if not graft.headers_of:
        return
    report.stage(f"headers of {graft.headers_of}")
    found = blobs.load(options.cache, graft.headers)
    if found is None:
        other = find_tag(options.patches, graft.headers_of, options.tag.framework)
        found = read_members(other, graft.headers, options.cache, None)
        blobs.store(options.cache, graft.headers, found)
    for path, data in found.items():
        if git_command.blob_hash(data) != graft.headers[path]:
            raise BadSources(f"{path} of {graft.headers_of} has another hash than series.toml says")
        target = tree.base / graft.lacking[path]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _own_runtime(
    wheel: WheelFile, graft: Graft, target: Target, tree: compilation.Tree, scratch: Path
) -> cuda.Runtime | None:
    """CUDA's runtime with the library to link with. Where the packages do not have the wheel's, since it carries one, is for an
    older CUDA or for another kind of machine, that is a stand-in. Raises DamagedWheel when nothing says which.
    """
    if tree.cuda is None:
        return None
    if own := cuda.carried(wheel.members):
        return replace(tree.cuda, library=compilation.stand_in(tree.base / own, Path(own).name, scratch))
    if tree.cuda.library and target.machine == platform.machine():
        return tree.cuda
    name = symbols.needed_library(tree.base / graft.cuda_library, "libcudart.so.") if graft.cuda_library else None
    if name is None and tree.cuda.library:
        name = tree.cuda.library.name
    if name is None:
        raise DamagedWheel(f"{wheel.path.name} carries no CUDA runtime library, and needs none by name: see cuda.toml")
    return replace(tree.cuda, library=compilation.stand_in(tree.cuda.functions, name, scratch))


def _verify(
    wheel: WheelFile, tag: Tag, graft: Graft, libraries: list[Library], tree: compilation.Tree, edited: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """Checks the whole wheel, and unpacks the part of it that the build needs.

    Upstream changed files of some releases (1.7.0 to 1.12.1) after RECORD was written. If the catalogue knows the hash of the
    whole file, which is checked by now, they are what upstream published; returns what RECORD should say of them.
    """
    headers = tuple(f"{folder.rstrip('/')}/" for folder in graft.include)
    needed = {graft.abi_library}
    for library in libraries:
        needed |= {f"{Path(library.path).parent.as_posix()}/{name}" for name in library.links_with}
    if any(library.cuda for library in libraries):
        needed |= {cuda.carried(wheel.members) or ""}

    patched = {graft.member(path): path for path in edited}

    def place(name: str) -> Path | None:
        if name in patched:
            return tree.patched / patched[name]
        installed = _DATA.sub("", name)
        return tree.base / installed if installed.startswith(headers) or name in needed else None

    tree.patched.mkdir()
    with report.progress("verify", wheel.total_size(), is_bytes=True) as show:
        different = wheel.verify(place, show, vouched=wheel.path.name in tag.wheels)
    for name in different:
        report.note(f"{name} is not what the wheel's RECORD says, but the wheel is the official one, by its hash")
    return different


def _changed_files(graft: Graft, patched: Path, touched: list[str]) -> dict[str, bytes]:
    """The files of the patched tree that are part of the wheel, by name."""
    names = {path: graft.member(path) for path in sorted(touched)}
    return {name: (patched / path).read_bytes() for path, name in names.items() if name}


def _edited_files(wheel: WheelFile, graft: Graft, version: Version) -> dict[str, bytes]:
    """The files that are edited in the wheel, since no source tree has them, by name. Raises BadSources or DamagedWheel."""
    lines = api_modules.find(graft.exports, wheel.members)
    edited = api_modules.edit({name: wheel.read(name) for name in lines}, lines)
    for name in graft.messages:
        source = wheel.read(name)
        if not any(field.encode() in source for field in config_message.FIELDS):  # one of a patched tree has them
            edited[name] = config_message.add_fields(source)
    if graft.version_file:
        edited[graft.version_file] = _edit_version(wheel.read(graft.version_file), graft)
    metadata = f"{wheel.dist_info}/METADATA"
    edited[metadata] = _edit_metadata(wheel.read(metadata), version)
    return edited


def _version(wheel: WheelFile, graft: Graft) -> Version:
    base = wheel.name.version
    local = f"{base.local}.{graft.label}" if base.local else graft.label
    return Version(f"{base.public}+{local}")


def _platforms(wheel: WheelFile, built: Iterable[Path], provided: set[str], target: Target) -> list[str]:
    """The platforms that the patched wheel is for; `provided` are the libraries that it finds wherever it is installed."""
    versions = [version for file in built for version in symbols.needed_versions(file, provided)]
    need = symbols.oldest_glibc(versions, target.machine)
    claimed = wheel.name.platforms
    platforms = symbols.true_platforms(claimed, need, target.machine, glibc_minor())
    if platforms != claimed:
        report.note(
            f"this machine's compiler makes the library need {need.because}, so the wheel is tagged "
            f"{'.'.join(platforms)}, not {'.'.join(claimed)}: build on an older distribution for a wider claim"
        )
    return platforms


def _identity(wheel: WheelFile, version: Version, platforms: Sequence[str]) -> Identity:
    package = wheel.dist_info.split("-")[0]
    parts = wheel.path.name.removesuffix(".whl").split("-")
    return Identity(
        version=version,
        old_dist_info=wheel.dist_info,
        new_dist_info=f"{package}-{version}.dist-info",
        file_name=f"{package}-{version}-{parts[-3]}-{parts[-2]}-{'.'.join(platforms)}.whl",
        platforms=tuple(platforms),
    )


def _edit_version(source: bytes, graft: Graft) -> bytes:
    """Adds the label to the version; a CUDA wheel's states its CUDA version here, and nowhere else."""

    def labelled(match: re.Match[bytes]) -> bytes:
        return b"__version__ = '%s%s%s'" % (match[2], b"." if b"+" in match[2] else b"+", graft.label.encode())

    edited, count = re.subn(rb"(?m)^__version__ = (['\"])(.*)\1$", labelled, source)
    if count != 1:
        raise BadSources(f"the base wheel's {graft.version_file} does not set __version__ in one line")
    return edited


def _edit_metadata(source: bytes, version: Version) -> bytes:
    head, separator, body = source.partition(b"\n\n")
    edited, count = re.subn(rb"(?m)^Version: .*$", b"Version: " + str(version).encode(), head)
    if count != 1:
        raise DamagedWheel("the base wheel's METADATA does not state one version")
    return edited + separator + body


def _edit_tags(source: bytes, identity: Identity) -> bytes:
    """States the platforms of the file's name in WHEEL, where upstream states others now and then."""
    lines: list[str] = []
    stated_tags: set[str] = set()
    for line in re.findall(r"[^\n]*\n|[^\n]+$", source.decode()):
        if not line.lower().startswith("tag:"):
            lines.append(line)
            continue
        stated = _TAG.fullmatch(line)
        if stated is None:
            raise DamagedWheel(
                f"the base wheel's WHEEL has the line {line.strip()!r}, which is no tag: download it again"
            )
        tags = [f"Tag: {stated[1]}-{stated[2]}-{platform}\n" for platform in identity.platforms]
        lines += [tag for tag in tags if tag not in stated_tags]
        stated_tags.update(tags)
    return "".join(lines).encode()


def _date(wheel: WheelFile) -> source_date.Date:
    """The date of new members: SOURCE_DATE_EPOCH when it is set, else the date of the base wheel's own RECORD."""
    chosen = source_date.chosen()
    return wheel.members[f"{wheel.dist_info}/RECORD"].date_time if chosen is None else source_date.archive_date(chosen)


def _write(wheel: WheelFile, changed: Mapping[str, bytes], compiled: Compiled, target: Path) -> readback.Copied:
    """Writes the patched wheel: members in the base wheel's order, then new ones by name, then the dist-info folder."""
    record, identity = {**wheel.record(), **compiled.corrected}, compiled.identity
    old_record = f"{identity.old_dist_info}/RECORD"
    rows: list[tuple[str, str, str]] = []
    copied: dict[str, str] = {}
    contents = dict(changed)
    tags = f"{identity.old_dist_info}/WHEEL"
    contents[tags] = _edit_tags(wheel.read(tags), identity)
    members = [name for name in wheel.members if name not in (old_record, f"{old_record}.jws", f"{old_record}.p7s")]
    info_folder = f"{identity.old_dist_info}/"
    own = [name for name in members if not name.startswith(info_folder)]
    added = sorted(set(contents) - set(members))
    new = [name for name in added if not name.startswith(info_folder)]
    described = [name for name in (*members, *added) if name.startswith(info_folder)]
    library_mode = stat.S_IMODE(wheel.members[compiled.graft.abi_library].external_attr >> 16)
    with target.open("wb") as file, wheel.stream() as source:
        writer = ArchiveWriter(file, _date(wheel))
        with report.progress("graft", len(members)) as show:
            for done, name in enumerate([*own, *new, *described]):
                is_described = name.startswith(info_folder)
                final = name.replace(identity.old_dist_info, identity.new_dist_info, 1) if is_described else name
                info = wheel.members.get(name)
                if name in contents:
                    data = contents[name]
                    mode = stat.S_IMODE(info.external_attr >> 16) if info else 0o644
                    writer.add(final, data, library_mode if name in compiled.built else mode)
                    rows.append((final, record_hash(data), str(len(data))))
                else:
                    assert info is not None
                    writer.copy(source, info, final)
                    copied[final] = name
                    if not info.is_dir():
                        rows.append((final, *record[name]))
                show(done)
        name = f"{identity.new_dist_info}/RECORD"
        info = wheel.members[old_record]
        writer.add(name, record_text([*rows, (name, "", "")]), stat.S_IMODE(info.external_attr >> 16) or 0o644)
        writer.finish()
    return readback.Copied(wheel, copied, record)
