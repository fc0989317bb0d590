"""What the graft starts from: the official wheel, or what a user or Debian has instead where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from lmsbuild import report
from lmsbuild.bases import debian_package, framework_package
from lmsbuild.catalogue import debian_builds
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.catalogue.debian_builds import DebianBuild
from lmsbuild.conda.platforms import Platform
from lmsbuild.errors import WrongPlatform, WrongVersion, disk_failures
from lmsbuild.fetch.apt import NotDebian
from lmsbuild.graft import graft
from lmsbuild.patch.series import read_series
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import WheelFile
from lmsbuild.workspace import workspace

DEBIAN = "debian"  # what stands for Debian's own build among the files that a user gives


@dataclass(frozen=True)
class Base:
    """A base, and what comes of it."""

    wheel: Path | None  # None: pip fetches it
    requires: tuple[str, ...] = ()  # of conda, beside what the wheel's metadata says
    python: str | None = None  # the interpreter that it is for; None: any


@contextmanager
def base(
    tag: Tag, platform: Platform, python: str | None, given: Sequence[str], patches: Path, cache: Path, output: Path
) -> Iterator[Base]:
    """The base of a tag for a platform: a wheel, conda packages or Debian's build, as given, or else what there is.

    Its wheel may be gone afterwards. Raises WrongPlatform when there is none, and WrongVersion, DamagedPackage, NoSuchFile,
    NotDebian or SourceUnreachable.
    """
    build = debian_build(tag, platform, python, given, patches)
    if build is None and not given:
        yield Base(None)
    elif build is None and not framework_package.is_package(Path(given[0])):
        yield Base(_only(given))
    else:
        with disk_failures(output), workspace(output) as folder:
            libraries = PurePosixPath(read_series(patches, tag).graft.abi_library).parent.as_posix()
            if build is None:
                with ExitStack() as stack:
                    packages = [stack.enter_context(InputFile(Path(name))) for name in given]
                    for package in packages:
                        package.make_private(folder)
                    requires = framework_package.requirements(packages)
                    report.stage("base package")
                    wheel = framework_package.as_wheel(packages, tag.package, libraries, tag.version, platform, folder)
                yield Base(wheel, requires)
                return
            try:
                wheel = debian_package.as_wheel(build, tag, libraries, cache, folder)
            except NotDebian as error:
                raise NotDebian(f"{error}; or give another base with --base") from error
            yield Base(wheel, build.requires, build.python)


def check_given(tag: Tag, platform: Platform, python: str | None, given: Sequence[str]) -> None:
    """Raises what making a base of these files would, as far as they say by themselves what they are."""
    files = [Path(name) for name in given]
    if files and framework_package.is_package(files[0]):
        for package in files:
            framework_package.check(package, tag.version, platform)
    elif files:
        wheel = _only(given)
        graft.check_identity(wheel, tag, replace(target_for(python), machine=platform.machine, is_running=False))
        with WheelFile(wheel):
            pass  # it is whole enough to be opened


def debian_build(
    tag: Tag, platform: Platform, python: str | None, given: Sequence[str], patches: Path
) -> DebianBuild | None:
    """Debian's build, where that is the base; None: another is. `python` is the interpreter that is asked for, None: any.

    Raises WrongPlatform or WrongVersion.
    """
    if DEBIAN not in given and (given or platform.machine in tag.machines or not tag.machines):
        return None
    _only(given or (DEBIAN,))
    build = debian_builds.find(patches, tag, platform.machine)
    if build is None:
        raise _no_build(tag, platform, given, patches)
    if python and target_for(python).interpreter != build.interpreter:
        raise WrongVersion(
            f"Debian's build of {tag.name} for {platform.subdir} is for Python {build.python}, not {python}: leave out --python, "
            "or give a wheel or a conda package for that one with --base"
        )
    return build


def _only(given: Sequence[str]) -> Path:
    """Raises WrongVersion when there is more than one, but they are not all conda packages."""
    if len(given) > 1:
        raise WrongVersion(f"{given[0]} is a whole base: --base is given again only for the parts of a conda package")
    return Path(given[0])


def _no_build(tag: Tag, platform: Platform, given: Sequence[str], patches: Path) -> WrongPlatform:
    known = [build.tag for build in debian_builds.read(patches, tag.framework) if build.machine == platform.machine]
    of_debian = f"Debian builds {' and '.join(known)}" if known else "Debian builds none"
    none = "" if given else f"there is no official wheel of {tag.framework} {tag.name} for {platform.subdir}, and "
    return WrongPlatform(
        f"{none}of {tag.framework} for {platform.subdir} {of_debian}: give a wheel or a conda package that others built, with "
        "--base; docs/tags.md has what there is for each platform"
    )
