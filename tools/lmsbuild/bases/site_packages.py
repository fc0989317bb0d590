"""A framework's files as pip installs them, where a distribution has them in several places: put together, and packed as a wheel.

What a folder of this kind is called here is `site`.
"""

from __future__ import annotations

import posixpath
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

from lmsbuild.conda import runpath
from lmsbuild.wheel.wheel import record_hash, record_text

_DATE = (2020, 1, 1, 0, 0, 0)
_ABOVE = "../.."  # from `site` to the environment's folder `lib`


def relink(site: Path, libraries: str, unused: Sequence[str] = ()) -> None:
    """Makes everything in `site` look for libraries in its folder `libraries` first, and then where an environment has them.

    A library there may have had another name, and files may name libraries of which they use nothing, `unused`. Raises
    DamagedWheel or NoCondaTools.
    """
    found = {path: elf for path in sorted(site.rglob("*")) if path.is_file() and (elf := read(path))}
    names = {elf.name: path.name for path, elf in found.items() if elf.name and path.parent == site / libraries}
    for path in found:
        folder = path.parent.relative_to(site).as_posix()
        own = posixpath.relpath(libraries, folder)
        entries = ["$ORIGIN" if own == "." else f"$ORIGIN/{own}", f"$ORIGIN/{posixpath.relpath(_ABOVE, folder)}"]
        runpath.rename(path, entries, names, unused)


def pack(site: Path, dist_info: str, abi: str, platform: str, folder: Path) -> Path:
    """Writes `site` as a wheel into `folder` and returns it; `dist_info` is its folder of that kind, without a RECORD."""
    unfinished = folder / "base"
    rows: list[tuple[str, str, str]] = []
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for path in sorted(site.rglob("*")):
            if path.is_file():
                name, data = path.relative_to(site).as_posix(), path.read_bytes()
                rows.append((name, record_hash(data), str(len(data))))
                _add(wheel, name, data, path.stat().st_mode)
        record = f"{dist_info}/RECORD"
        _add(wheel, record, record_text([*rows, (record, "", "")]), 0o644)
    return unfinished.rename(folder / f"{dist_info.removesuffix('.dist-info')}-{abi}-{abi}-{platform}.whl")


def read(path: Path) -> runpath.Elf | None:
    """What a file tells the loader; None when it is no ELF file."""
    with path.open("rb") as stream:
        return runpath.read(stream, path.name)


def _add(wheel: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = (stat.S_IFREG | stat.S_IMODE(mode)) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, data)
