"""Whether a channel is what its index says, and whether its packages can work where they are installed."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmsbuild.channel import attestations, channel, index, inspection
from lmsbuild.conda import package_file, runpath, tools
from lmsbuild.conda.package_file import Package
from lmsbuild.conda.platforms import Platform, read_platforms
from lmsbuild.errors import BadChannel, DamagedPackage, DamagedWheel
from lmsbuild.published.regular_file import read_file

_ANEW = "`lmsbuild channel repair` writes it anew"
_LARGEST_SHOWN = 20  # findings


def check(folder: Path, recipes: Path) -> int:
    """Checks the channel in `folder` and returns how many packages it has. Raises BadChannel, which says all that is wrong."""
    machines = {platform.subdir: platform for platform in read_platforms(recipes)}
    findings: list[str] = []
    parts = []
    for path in channel.subdirs(folder):
        records, facts = channel.read_index(path), dict[str, dict[str, Any]]()
        for name, record in sorted(records.items()):
            found = _check_package(path / name, record, machines.get(path.name), facts)
            findings += (f"{path.name}/{name}: {what}" for what in found)
        parts.append(index.Part(path.name, records, facts))
    findings += _check_index(folder, parts)
    findings += _check_dependencies(parts)
    if findings:
        shown = "\n  ".join(findings[:_LARGEST_SHOWN])
        more = f"\n  and {len(findings) - _LARGEST_SHOWN} more" if len(findings) > _LARGEST_SHOWN else ""
        raise BadChannel(
            f"{folder} has {len(findings)} faults:\n  {shown}{more}\n  Put back the files that were published; what was built "
            "wrong is built again with another build number."
        )
    return sum(len(part.records) for part in parts)


def _check_index(folder: Path, parts: list[index.Part]) -> Iterator[str]:
    """Whether each file of the index is there, and what the packages make of it, as far as these can be read."""
    readable = all(set(part.facts) == set(part.records) and _is_readable(part) for part in parts)
    for part in parts:
        tables = index.tables(part) if readable else {}
        for name in index.FILES:
            path = folder / part.subdir / name
            yield from _check_packed(path)
            yield from _check_table(path, tables.get(name))
        for path in sorted((folder / part.subdir).iterdir()):
            if path.name not in part.records and path.name.endswith(package_file.SUFFIXES):
                yield (
                    f"{part.subdir}: {package_file.shown(path.name)} is not in the index: `lmsbuild channel publish` adds it, or "
                    "says what is wrong with it"
                )
    yield from _check_table(folder / index.CHANNELDATA, index.channeldata(parts) if readable else None)


def _is_readable(part: index.Part) -> bool:
    """Whether clients can read it, of which _check_dependencies tells."""
    try:
        return part.packages is not None
    except BadChannel:
        return False


def _check_packed(path: Path) -> Iterator[str]:
    packed = path.with_name(f"{path.name}.zst")
    if not packed.exists():
        yield f"{path.parent.name}: {packed.name} is missing: {_ANEW}"
    elif path.exists():
        try:
            table = read_file(path)
            if channel.unpacked_index(read_file(packed), len(table)) != table:
                yield f"{path.parent.name}: {packed.name} is not what {path.name} says: {_ANEW}"
        except BadChannel as error:
            yield f"{path.parent.name}: {packed.name}: {error}"
        except OSError as error:
            yield f"{path.parent.name}: {packed.name} cannot be read: {error.strerror}"


def _check_table(path: Path, expected: dict[str, Any] | None) -> Iterator[str]:
    try:
        if channel.read_table(path) != expected and expected is not None:
            yield f"{path.parent.name}: {path.name} is not what the packages say: {_ANEW}"
    except BadChannel as error:
        yield str(error)


def _check_package(
    path: Path, record: dict[str, Any], machine: Platform | None, facts: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Adds to `facts` what the index needs of the package beside its record."""
    if not path.is_file():
        yield "the file is missing"
        return
    try:
        with package_file.opened(path) as package:
            yield from _check_opened(package, path, record, machine, facts)
    except DamagedPackage as error:
        yield str(error)


def _check_opened(
    package: Package, path: Path, record: dict[str, Any], machine: Platform | None, facts: dict[str, dict[str, Any]]
) -> Iterator[str]:
    found = channel.digest(package)
    stated = channel.Digest(record["size"], record.get("md5", ""), record["sha256"])
    if found != stated:
        yield f"has {found.size} bytes and sha256 {found.sha256}, the index says {stated.size} and {stated.sha256}"
        return
    described, faults = inspection.inspect(package, lambda name, data: _check_elf(name, data, machine))
    yield from faults
    stated_there = {**index.record(path.name, described["index"]), **asdict(found)}
    facts[path.name] = index.facts(described)
    for key in sorted((stated_there.keys() | record.keys()) - {attestations.KEY}):
        if stated_there.get(key) != record.get(key):
            yield f"says {key} {stated_there.get(key)!r}, the index says {record.get(key)!r}"
    if path.parent.name != record.get("subdir"):
        yield f"is for {record.get('subdir')}"
    yield from attestations.check(path, record)


def _check_elf(name: str, data: bytes, machine: Platform | None) -> Iterator[str]:
    """What is wrong with what a file tells the loader."""
    try:
        elf = runpath.read(io.BytesIO(data), name)
    except DamagedWheel as error:
        yield str(error)
        return
    assert elf is not None  # as it begins like one
    if machine is None or elf.machine != machine.elf or not elf.little_endian:
        needed = machine.elf if machine else "any machine, as noarch promises"
        yield f"{name} is for {elf.machine}, not for {needed}"
    elif elf.alignment % machine.page:
        yield f"{name} is for pages of {elf.alignment} bytes, not for those of {machine.page}"
    for entry in elf.runpath:
        leads = posixpath.normpath(entry.replace("$ORIGIN", posixpath.dirname(name), 1))
        if not entry.startswith("$ORIGIN") or leads.startswith(".."):
            yield f"{name} looks for libraries in {entry}, outside the environment"


def _check_dependencies(parts: Iterable[index.Part]) -> Iterator[str]:
    """Whether what the channel itself has of a required package satisfies the requirement."""
    rattler = tools.rattler()
    try:
        packages = {part.subdir: part.packages for part in parts}
    except BadChannel as error:
        yield str(error)
        return
    for subdir, own in packages.items():
        reachable: dict[str, list[Any]] = {}
        others = packages.get(channel.NOARCH, {}) if subdir != channel.NOARCH else {}
        stems = set(map(package_file.stem, (*own, *others)))
        for other in (*own.values(), *others.values()):
            reachable.setdefault(other.name.normalized, []).append(other)
        for file, package in sorted(own.items()):
            for text in package.depends:
                there = reachable.get(index.required_name(text), [])
                if not there or index.exact_stem(text) in stems:
                    continue
                if not any(map(rattler.MatchSpec(text).matches, there)):
                    has = ", ".join(sorted(f"{other.version} {other.build}" for other in there))
                    yield f"{subdir}/{file}: requires {text!r}, of which the channel has only {has}"
