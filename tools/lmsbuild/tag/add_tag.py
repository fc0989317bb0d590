"""`lmsbuild tag add`: a new row of the catalogue, with its patch, out of nothing but the official wheel.

The row and the patches are written last, when the patched wheel was built and has trained a model bit-equal; whatever fails
before leaves everything as it was. Until then the work is done on a copy of the patch's sources.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lmsbuild import report
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.catalogue.catalogue import Release, Tag
from lmsbuild.errors import BadRelease, TagExists, WrongHash, disk_failures
from lmsbuild.fetch import download
from lmsbuild.graft import graft
from lmsbuild.patch import generate, series
from lmsbuild.tag import release
from lmsbuild.trial import trial
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.target import Target
from lmsbuild.wheel.wheel import WheelFile
from lmsbuild.workspace import workspace

MODEL, STEPS = "transformer", 4  # what the smoke test trains


@dataclass(frozen=True)
class Options:
    """Some new tags."""

    framework: str
    names: tuple[str, ...]  # upstream's tags, such as v2.16.0
    target: Target  # the interpreter whose wheel is read and tried
    interpreter: Path | None  # its program; None: the running one
    patches: Path
    cache: Path
    base_wheel: Path | None  # None: fetch it
    update: bool  # whether the tag may be there already
    package: str | None = None  # the one of the framework's packages whose wheel is built and tried; None: the first


def add(options: Options) -> Iterator[str]:
    """Adds one tag after the other; yields what each one's trial reported. Nothing is written of a tag that fails.

    Raises UnknownPackage, TagExists, UnknownRelease, BadRelease, BadSources, or as a build and a trial do.
    """
    if options.package is not None:
        known = catalogue.packages(options.patches, options.framework)
        catalogue.check_package(options.framework, options.package, known)
    with disk_failures(options.patches, options.cache), workspace(options.cache) as scratch:
        for name in options.names:
            yield _add(options, name, scratch)


def _add(options: Options, name: str, scratch: Path) -> str:
    patches = options.patches
    catalogue.number(name)
    known = {tag.name: tag for tag in catalogue.tags(patches) if tag.framework == options.framework}
    if name in known and not options.update:
        raise TagExists(f"{options.framework} {name} is in the catalogue: `--update` reads it anew")
    report.stage("release")
    packages, version = catalogue.packages(patches, options.framework), name.removeprefix("v")
    oldest = series.oldest_python(patches, options.framework)
    options.target.check_python(oldest)
    wheels = {}
    for package in packages:
        wheels.update(release.wheels(package, version, oldest))
    known_wheels = Release(options.package or packages[0], version, wheels)
    base = _base_wheel(options, known_wheels)
    with InputFile(base) as file, WheelFile(file) as wheel:
        download.check_known(known_wheels, file)
        if wheel.name.version.local:
            raise BadRelease(
                f"{base.name} is a build of its own ({wheel.name.version.local}), from a place that pip is configured to "
                "look in: give the official wheel with --base"
            )
        tag = release.read(patches, options.framework, name, wheels, wheel)
        originals = {path: wheel.read(member) for path, member in graft.edited_members(patches, tag).items()}
        if wheel.name.package != packages[0]:
            tag = release.of_main_package(patches, tag)
        tag = release.of_builds(patches, tag)
    staged = scratch / name / "patches"
    shutil.copytree(patches, staged, ignore=shutil.ignore_patterns("*.patch", "__pycache__"))
    rows.write(staged, tag)
    wanted = generate.series(staged, tag.framework) | generate.hook(staged, tag, originals)
    generate.write(wanted)
    output = scratch / name / "dist"
    made = graft.build(graft.Options(tag, options.target, staged, options.cache, output, base))
    said = trial.run(made, None, MODEL, STEPS, options.interpreter, scratch / "environment")
    shutil.rmtree(scratch / name)
    tag = replace(tag, trained=options.target.python)
    report.stage("catalogue")
    _write(
        patches, tag, {patches / path.relative_to(staged): content for path, content in wanted.items()}, known.get(name)
    )
    return said


def _base_wheel(options: Options, known: Release) -> Path:
    if options.base_wheel is None:
        return download.fetch(known, options.target, options.cache)
    InputFile(options.base_wheel).close()
    if options.base_wheel.name not in known.wheels:
        raise WrongHash(
            f"{options.base_wheel.name} is no official wheel of {known.package} {known.version} that the registry lists: "
            "keep the name under which it was published, or leave out --base to have it fetched"
        )
    return options.base_wheel


def _write(patches: Path, tag: Tag, wanted: generate.Wanted, before: Tag | None) -> None:
    """Writes patches and row. If the row cannot be written the patches are taken back."""
    old = generate.present(wanted)
    generate.write(wanted)
    try:
        rows.write(patches, _merged(tag, before))
    except BaseException:
        generate.write(old)
        raise


def _merged(tag: Tag, before: Tag | None) -> Tag:
    """The row with the wheels that were known before too: those of another place than pip is configured for now."""
    return tag if before is None else replace(tag, wheels={**before.wheels, **tag.wheels})
