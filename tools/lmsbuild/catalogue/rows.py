"""Writes rows of the catalogue: patches/catalogue/<framework>/tags.toml in its one form, in the order of versions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from lmsbuild.catalogue import catalogue
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.workspace import publish


def write(patches: Path, tag: Tag) -> None:
    """Puts the row of `tag` into the catalogue, in place of the one of that name if there is one, in one step."""
    path = patches / "catalogue" / tag.framework / "tags.toml"
    others = [row for row in catalogue.tags(patches) if row.framework == tag.framework and row.name != tag.name]
    head = path.read_text().split("[[tag]]", 1)[0]
    replace_file(path, f"{head.rstrip()}\n\n{text([*others, tag])}".encode())


def text(tags: Iterable[Tag]) -> str:
    """The rows as the file has them."""
    return "\n".join(_row(tag) for tag in sorted(tags, key=lambda tag: tag.number))


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file beside `path` and moves it there: a reader finds the old one or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        fresh.chmod(0o644)
        publish(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _row(tag: Tag) -> str:
    lines = ["[[tag]]"]
    for key in ("name", "commit", "version", "cuda", "abi", "standard", "generation"):
        if value := getattr(tag, key):
            lines.append(f'{key} = "{value}"')
    devices = ", ".join(f'"{device}"' for device in tag.supports)
    lines.append(f"supports = [{devices}]")
    if tag.trained:
        lines.append(f'trained = "{tag.trained}"')
    for key in ("blobs", "records", "wheels"):
        if key != "records" or tag.records:
            pairs = sorted(getattr(tag, key).items())
            lines += ["", f"[tag.{key}]", *(f'"{name}" = "{value}"' for name, value in pairs)]
    return "\n".join(lines) + "\n"
