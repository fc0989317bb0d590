"""What the files that clients read say, as tables: the same for the same packages, whenever and in whatever order they came.

Left out: `.bz2` twins, which are deprecated (CEP 36); `indexed_timestamp` (CEP 47), since the same packages would give other
bytes; shards (CEP 16), which save a client from reading about names that it does not ask for: a channel of frameworks has few.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lmsbuild.channel import description
from lmsbuild.conda import tools
from lmsbuild.conda.package_file import stem
from lmsbuild.errors import BadChannel, DamagedPackage

CHANNELDATA = "channeldata.json"
# In each platform's folder, in the order in which they are written: the one that every client can read comes last.
FILES = ("run_exports.json", "current_repodata.json", "repodata.json")
# That index.json may have: what the index does not need, and what only a channel can say.
_NOT_INDEXED = ("arch", "platform", "attestations_sha256", "channel", "fn", "url")
_ABOUT = ("description", "dev_url", "doc_url", "home", "license", "source_url", "summary")  # of about.json
_SCRIPTS = {"pre_link": "-pre-link.", "post_link": "-post-link.", "pre_unlink": "-pre-unlink."}
_ACTIVATION = ("activate.d", "deactivate.d")
_FLAGS = {"binary_prefix", "text_prefix", *_SCRIPTS, *_ACTIVATION}
_NAME = re.compile(r"\s*(?:[^\s\[]*::)?([\w.-]+)")  # of a requirement
_EXACT = re.compile(r"([\w.-]+) ==(\S+) (\S+)")  # a requirement of one build


@dataclass(frozen=True)
class Part:
    """One platform's part of a channel."""

    subdir: str
    records: Mapping[str, dict[str, Any]]  # what repodata.json says of each package, by file name
    facts: Mapping[str, dict[str, Any]]  # what else the index needs of each

    @cached_property
    def packages(self) -> dict[str, Any]:
        """The records as clients have them, by file name. Raises BadChannel."""
        rattler = tools.rattler()
        with os.fdopen(os.memfd_create("repodata"), "wb") as file:  # py-rattler reads files only
            file.write(as_bytes(_repodata(self.subdir, self.records)))
            file.flush()
            try:
                table = rattler.RepoData.from_path(f"/proc/self/fd/{file.fileno()}")
            except Exception as error:  # py-rattler's have no common class
                raise BadChannel(
                    f"no client can read {self.subdir}/repodata.json ({error}): put back what was there, or let "
                    "`lmsbuild channel repair` write it anew"
                ) from error
        return {str(package.file_name): package for package in table.into_repo_data(rattler.Channel("channel"))}


def facts(described: Mapping[str, Any]) -> dict[str, Any]:
    """What the index needs of a package beside its record."""
    about, rows = described.get("about", {}), described.get("paths", {}).get("paths", [])
    # A list, since a package may state anything, also what a set cannot have.
    modes = [row.get("file_mode") for row in rows if row.get("prefix_placeholder")]
    names = [row["_path"] for row in rows]
    flags = {f"{mode}_prefix": mode in modes for mode in ("binary", "text")}
    flags |= {key: any(name.startswith(f"etc/conda/{key}/") for name in names) for key in _ACTIVATION}
    flags |= {key: any(script in name.rpartition("/.")[2] for name in names) for key, script in _SCRIPTS.items()}
    return {
        "about": {key: about[key] for key in _ABOUT if about.get(key)},
        "flags": flags,
        "run_exports": described.get("run_exports") or {},
    }


def are_facts(row: Any) -> bool:
    """Whether this may be what `facts` made, which was written and read back."""
    if not isinstance(row, dict) or not all(
        isinstance(row.get(key), dict) for key in ("about", "flags", "run_exports")
    ):
        return False
    faults = [fault for table in ("about", "run_exports") for fault in description.field_faults(table, row[table])]
    flags: dict[str, Any] = row["flags"]
    return not faults and flags.keys() == _FLAGS and all(isinstance(flag, bool) for flag in flags.values())


def required_name(text: str) -> str:
    """The package that a requirement is for, in lower case; empty: it names none."""
    named = _NAME.match(text)
    return named[1].lower() if named else ""


def exact_stem(text: str) -> str:
    """The name, less its suffix, of a file that satisfies a requirement of one build; empty: it is none of that kind."""
    named = _EXACT.fullmatch(text)
    return "-".join(named.groups()) if named else ""


def record(file: str, index: Mapping[str, Any]) -> dict[str, Any]:
    """What repodata.json says of a package, but for what its file's bytes tell.

    Raises DamagedPackage when it is such that clients could not read the index with it.
    """
    for fault in description.faults({"index": index}):
        raise DamagedPackage(f"{file} {fault}: build it again")
    made = {key: value for key, value in index.items() if key not in _NOT_INDEXED}
    try:
        Part(made["subdir"], {file: made}, {}).packages  # noqa: B018
    except BadChannel as error:
        raise DamagedPackage(f"{file} has an index.json that clients cannot read ({error}): build it again") from error
    return made


def tables(part: Part) -> dict[str, dict[str, Any]]:
    """What each of FILES says."""
    exports = {file: {"run_exports": part.facts[file]["run_exports"]} for file in part.records}
    newest = {file: part.records[file] for file in _current(part)}
    return {
        "run_exports.json": {**_by_format(exports), "info": {"subdir": part.subdir, "version": 1}},
        "current_repodata.json": _repodata(part.subdir, newest),
        "repodata.json": _repodata(part.subdir, part.records),
    }


def channeldata(parts: Iterable[Part]) -> dict[str, Any]:
    """What channeldata.json says, of the whole channel: one row for each name (CEP 38)."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    subdirs = []
    for part in parts:
        subdirs.append(part.subdir)
        for file, package in part.packages.items():
            known, other = part.records[file], part.facts[file]
            date = _seconds(known.get("timestamp") or 0)
            order = (package.version, known.get("build_number", 0), date, part.subdir, file)
            found.setdefault(known["name"], []).append((order, known, other))
    packages = {}
    for name, rows in found.items():
        rows.sort(key=lambda row: row[0])  # the newest comes last, and what it says counts
        entry: dict[str, Any] = {"run_exports": {}, "subdirs": sorted({known["subdir"] for _, known, _ in rows})}
        for order, known, other in rows:
            entry |= {**other["about"], "version": known["version"]}
            if known.get("license"):
                entry["license"] = known["license"]
            if other["run_exports"]:
                entry["run_exports"][known["version"]] = other["run_exports"]
            for key, value in other["flags"].items():
                entry[key] = entry.get(key, False) or value
            entry["timestamp"] = max(entry.get("timestamp", 0), order[2])
        packages[name] = entry
    return {"channeldata_version": 1, "packages": packages, "subdirs": sorted(subdirs)}


def as_bytes(table: Mapping[str, Any]) -> bytes:
    return (json.dumps(table, indent=1, sort_keys=True) + "\n").encode()


def _repodata(subdir: str, records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    return {**_by_format(records), "info": {"subdir": subdir}, "removed": [], "repodata_version": 1}


def _by_format(rows: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    new = {name: row for name, row in rows.items() if name.endswith(".conda")}
    return {"packages": {name: row for name, row in rows.items() if name not in new}, "packages.conda": new}


def _current(part: Part) -> set[str]:
    """The packages of the newest version of each name, and of the newest that each requirement of these takes."""
    rattler = tools.rattler()
    packages = part.packages
    versions = {file: package.version for file, package in packages.items()}
    by_name: dict[str, list[str]] = {}
    by_version: dict[tuple[str, Any], set[str]] = {}
    by_stem: dict[str, list[str]] = {}
    for file, package in packages.items():
        by_name.setdefault(package.name.normalized, []).append(file)
        by_version.setdefault((package.name.normalized, versions[file]), set()).add(file)
        by_stem.setdefault(stem(file), []).append(file)

    def newest(files: list[str]) -> set[str]:
        return by_version[packages[files[0]].name.normalized, max(versions[file] for file in files)]

    kept = set[str]().union(*map(newest, by_name.values()))
    left, met = sorted(kept), set[str]()
    while left:
        for text in set(packages[left.pop()].depends) - met:
            met.add(text)
            taken = by_stem.get(exact_stem(text), [])
            if not taken:
                wanted = rattler.MatchSpec(text)
                taken = [file for file in by_name.get(required_name(text), []) if wanted.matches(packages[file])]
            if taken and kept.isdisjoint(taken):
                more = newest(taken)
                kept |= more
                left += sorted(more)
    return kept


def _seconds(timestamp: int) -> int:
    """Of a date that may be in milliseconds, as clients tell one from the other."""
    return timestamp // 1000 if timestamp > 253_402_300_799 else timestamp  # the last second of the year 9999
