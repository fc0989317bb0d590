"""What a row was made from and what came of it, in a file beside the output: a row is up to date while both hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from lmsbuild import paths
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.conda.platforms import find_platform
from lmsbuild.matrix.matrix import base_of
from lmsbuild.matrix.row import Row
from lmsbuild.patch.patch import find_patch
from lmsbuild.wheel.wheel import file_sha256

FOLDER = "build-all"  # in the output: stamps, logs and the report


@dataclass(frozen=True)
class Product:
    """A file that a row was built to."""

    path: str  # below the output
    sha256: str

    def is_in(self, output: Path) -> bool:
        file = output / self.path
        return file.is_file() and file_sha256(file) == self.sha256


def inputs(row: Row, options: Sequence[str], tag: Tag | None = None) -> dict[str, Any]:
    """All that a row is made from; `options` are those of `lmsbuild conda`. Who asks for many rows gives the `tag` of each."""
    patches, recipes = paths.patches_folder(), paths.recipes_folder()
    tag = tag or catalogue.find_tag(patches, row.tag, row.framework)
    folder = patches / "catalogue"
    found: dict[str, Any] = {
        "tool": metadata.version("lmsbuild"),
        "patch": find_patch(patches, tag).digest,
        "catalogue": _digest(folder, [folder / row.framework / "series.toml", folder / "cuda.toml"]),
        "base": base_of(patches, tag, row, find_platform(recipes, row.platform).machine),
    }
    if row.kind == "conda":
        files = [path for path in recipes.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        found |= {"recipe": _digest(recipes, files), "options": list(options)}
    return found


def read(output: Path, row: Row, made_from: Mapping[str, Any]) -> list[Product] | None:
    """The products of a row that is up to date; None: it has to be built."""
    try:
        known = json.loads(_file(output, row).read_text())
        products = [Product(**product) for product in known["products"]]
        holds = known["inputs"] == made_from and products and all(product.is_in(output) for product in products)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return products if holds else None


def write(output: Path, row: Row, made_from: Mapping[str, Any], products: Sequence[Product]) -> None:
    stamp = {"inputs": made_from, "products": [asdict(product) for product in products]}
    rows.replace_file(_file(output, row), (json.dumps(stamp, indent=1) + "\n").encode())


def log_file(output: Path, row: Row) -> Path:
    """What the tool said as it built the row the last time."""
    return output / FOLDER / f"{row.name}.log"


def _file(output: Path, row: Row) -> Path:
    return output / FOLDER / f"{row.name}.json"


def _digest(folder: Path, files: Iterable[Path]) -> str:
    """Changes when one of these files does, or its place in the folder."""
    told = [f"{path.relative_to(folder)} {file_sha256(path)}\n" for path in sorted(files) if path.is_file()]
    return hashlib.sha256("".join(told).encode()).hexdigest()
