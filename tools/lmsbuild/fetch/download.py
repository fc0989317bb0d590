"""Fetches wheels from where pip is configured to look, and keeps them in a cache that is checked by hash.

pip chooses among wheels, and fetches those from folders. One on a server that there is no choice about, and whose hash is
known, is fetched without pip, which forgets a download that was interrupted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from lmsbuild import report
from lmsbuild.catalogue.catalogue import Release, Tag
from lmsbuild.errors import DamagedWheel, DownloadFailed, NoSpace, WrongHash
from lmsbuild.fetch import http_requests, pip_command, ranged, resumable
from lmsbuild.lock import locked
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.target import Target

_SUM = ".sha256"
_UPSTREAMS = re.compile(r"cpu|cu\d+")  # the local version labels of PyTorch's own indices


def fetch(release: Release, target: Target, cache: Path) -> Path:
    """As `open_wheel`, but only the name of the file."""
    with open_wheel(release, target, cache) as file:
        return file.path


def open_wheel(release: Release, target: Target, cache: Path, private: Path | None = None) -> InputFile:
    """The wheel of `release` for `target`, from the cache or the registry; with the folder `private` a copy there, as it was checked.

    A file in the cache whose hash is wrong is fetched again. Who uses the file checks it once more, by `check_known`. Safe to call from several processes at once: one
    downloads, the others wait. Raises DownloadFailed or WrongHash.
    """
    folder = cache / f"{release.package}-{release.version}-{target.interpreter}-{target.machine}-{_source()}"
    lock = folder.with_name(folder.name + ".lock")
    with locked(lock, "another run fetches the same wheel; waiting for it"):
        kept = _cached(folder, release, private)
        if kept:
            report.note(f"{kept.path.name} (cached)")
            return kept
        shutil.rmtree(folder, ignore_errors=True)
        _remove_leftovers(folder)
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.download-", dir=cache))
        try:
            chosen = _chosen_links(release, target)
            wheel = _download_known(release, chosen, fresh) or _download(release, target, chosen, fresh)
            with InputFile(wheel) as file:
                digest = _hash(file)
            _check_catalogue(release, wheel, digest)
            wheel.with_name(wheel.name + _SUM).write_text(digest + "\n")
            os.replace(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return InputFile(folder / wheel.name)


def check_known(release: Release, wheel: InputFile, private: Path | None = None) -> str:
    """Checks a wheel against the catalogue, by its sha256; with the folder `private` a copy there, which is read from then on.

    Returns that hash. Raises WrongHash; says so when it is not known.
    """
    digest = wheel.private_sha256 or _hash(wheel, private)
    _check_catalogue(release, wheel.path, digest)
    if wheel.path.name not in release.wheels:
        report.note(f"{wheel.path.name} is not in the catalogue: its contents are checked against its own RECORD only")
    return digest


def _chosen_links(release: Release, target: Target) -> list[ranged.Link]:
    """The wheels of one version that is to be fetched; none where pip's own choice is taken.

    Of versions that differ in their local labels alone pip takes the highest, and any index could offer one. Where a wheel is
    offered that the catalogue knows, one with a label that upstream does not use is not taken.
    """
    if not target.is_running or not release.wheels:
        return []
    suiting = [link for link in ranged.links(release.package) if _suits(release, link.name)]
    if not any(link.name in release.wheels for link in suiting):
        return []
    taken = [
        link for link in suiting if link.name in release.wheels or _UPSTREAMS.fullmatch(_version(link).local or "")
    ]
    for name in sorted({link.name for link in suiting} - {link.name for link in taken}):
        report.note(f"{name} is not in the catalogue, so it is not taken: give it with --base if that is what you want")
    highest = max(map(_version, taken))
    best = [link for link in taken if _version(link) == highest]
    return [link for link in best if link.name in release.wheels] or best


def _version(link: ranged.Link) -> Version:
    return parse_name(Path(link.name)).version


def _download_known(release: Release, chosen: list[ranged.Link], folder: Path) -> Path | None:
    """The wheel, if there is only one that pip could choose, on a server, and the catalogue knows it."""
    if len({link.name for link in chosen}) != 1 or any(link.address.startswith("file:") for link in chosen):
        return None
    link = chosen[0]
    sha256 = release.wheels.get(link.name)
    if sha256 is None:
        return None
    wheel = folder / link.name
    lock = folder.parent / f"{sha256}.lock"
    with (
        locked(lock, "another run fetches the same wheel; waiting for it"),
        report.progress(f"download {release.package} {release.version}", None, is_bytes=True) as show,
    ):
        try:
            resumable.fetch(link.address, sha256, wheel, folder.parent, show)
        except http_requests.Refused as error:
            report.note(f"{error}; asking pip for it")  # which may have a password for that server
            return None
    return wheel


def _suits(release: Release, name: str) -> bool:
    """Whether the running interpreter can install the wheel of this name, which is of the release."""
    try:
        parsed = parse_name(Path(name))
    except DamagedWheel:
        return False
    is_of_release = parsed.package == canonicalize_name(release.package) and parsed.version.public == release.version
    return is_of_release and not parsed.tags.isdisjoint(sys_tags())


def _download(release: Release, target: Target, chosen: list[ranged.Link], folder: Path) -> Path:
    wanted = f"==={_version(chosen[0])}" if chosen else f"=={release.version}"
    words = ["download", "--no-deps", "--only-binary=:all:"]
    countable = _has_raw_progress()
    words += ["--progress-bar", "raw" if countable else "off"]
    words += [*target.pip_arguments(), "--dest", str(folder), f"{release.package}{wanted}"]
    with report.progress(f"download {release.package} {release.version}", None, is_bytes=countable) as show:

        def on_line(line: str) -> None:
            parts = line.split()
            if len(parts) == 4 and parts[0] == "Progress" and float(parts[3]):
                show(float(parts[1]), float(parts[3]))

        finished = pip_command.run(words, on_line=on_line)
    if finished.found_no_space:
        raise NoSpace(folder.parent, "pip says so")
    wheels = sorted(folder.glob("*.whl"))
    if finished.code or len(wheels) != 1:
        reasons = [line for line in finished.error_text.splitlines() if line.startswith("ERROR")]
        reason = reasons[-1] if reasons else finished.error_text.strip() or "pip gave no reason"
        broken = re.findall(r"after connection broken by (.+)", finished.text + finished.error_text)
        if broken:  # pip says that there is no such release, too, when it could not ask
            reason += f" (the connection was broken by {broken[-1]})"
        other = ""
        if isinstance(release, Tag):
            lacking = release.lacking(target.interpreter, target.machine)
            other = f"; a base wheel can be given with --base{lacking and f'. In the catalogue {lacking}'}"
        raise DownloadFailed(
            f"pip found no wheel of {release.package} {release.version} for {target}: {reason.removeprefix('ERROR: ')}\n"
            f"  Check the network and pip's configuration (`pip config list`){other}."
        )
    if chosen and wheels[0].name not in {link.name for link in chosen}:
        raise DownloadFailed(
            f"pip took {wheels[0].name} instead of {chosen[0].name}, which the catalogue knows: give the wheel with --base"
        )
    return wheels[0]


def _has_raw_progress() -> bool:
    from pip import __version__

    return int(__version__.split(".")[0]) >= 24 and __version__ != "24.0"


def _source() -> str:
    """Changes when pip is configured to look elsewhere, for another build of the same version may be there."""
    places = [line for line in pip_command.configuration().splitlines() if "index" in line or "find-links" in line]
    return hashlib.sha256("\n".join(places).encode()).hexdigest()[:8]


def _cached(folder: Path, release: Release, private: Path | None) -> InputFile | None:
    for path in folder.glob("*.whl"):
        try:
            expected = path.with_name(path.name + _SUM).read_text().strip()
        except OSError:
            expected = ""
        wheel = InputFile(path)
        try:
            if _hash(wheel, private) == release.wheels.get(path.name, expected) == expected:
                return wheel
        except BaseException:
            wheel.close()
            raise
        wheel.close()
        report.note(f"{path.name} in the cache is damaged; fetching it again")
    return None


def _check_catalogue(release: Release, wheel: Path, digest: str) -> None:
    expected = release.wheels.get(wheel.name)
    if expected and expected != digest:
        raise WrongHash(
            f"{wheel.name} has the sha256 {digest}, the official one has {expected}: it was damaged or replaced; "
            "fetch it again from a registry that you trust"
        )


def _hash(wheel: InputFile, private: Path | None = None) -> str:
    with report.progress("hash", wheel.size, is_bytes=True) as show:
        return wheel.make_private(private, show) if private else wheel.sha256(show)


def _remove_leftovers(folder: Path) -> None:
    for left in folder.parent.glob(f"{folder.name}.download-*"):
        shutil.rmtree(left, ignore_errors=True)
