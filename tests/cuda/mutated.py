"""A copy of an installed torch whose LMS has all mutants of mutants.toml built in; LMS_MUTANT names the one that runs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import cuda
from lmsbuild.graft import compilation
from lmsbuild.patch import series

TABLE = Path(__file__).with_name("mutants.toml")
# What a mutated file begins with.
_ASKS = """#ifndef LMS_TEST_MUTANT
#define LMS_TEST_MUTANT
#include <cstdlib>
#include <cstring>
static inline bool lms_test_mutant(const char* name) {
  static const char* const chosen = std::getenv("LMS_MUTANT");
  return chosen != nullptr && std::strcmp(chosen, name) == 0;
}
#endif
"""


@dataclass(frozen=True)
class Mutant:
    """One row of the table."""

    name: str
    file: str
    text: str
    mutant: str
    killed_by: str


def mutants() -> list[Mutant]:
    return [Mutant(**row) for row in catalogue.read_toml(TABLE)["mutant"]]


def mutated_files(tag_name: str) -> dict[str, bytes]:
    """The files that LMS adds to a tag, with all mutants in them."""
    patches = paths.patches_folder()
    files = {str(path): data for path, data in series.new_files(patches, _tag(tag_name)).items()}
    for mutant in mutants():
        source = files[mutant.file].decode()
        assert source.count(mutant.text) == 1, f"{mutant.name}: {source.count(mutant.text)} times in {mutant.file}"
        source = source.replace(mutant.text, mutant.mutant.replace("MUTANT", f'lms_test_mutant("{mutant.name}")'))
        files[mutant.file] = (source if source.startswith(_ASKS) else _ASKS + source).encode()
    return files


def _tag(name: str) -> catalogue.Tag:
    return catalogue.find_tag(paths.patches_folder(), name, "pytorch")


def build(tag_name: str, installed: Path, folder: Path) -> Path:
    """The folder to put before all others in PYTHONPATH: links to `installed`, a folder of packages with torch, but for the
    libraries of LMS.
    """
    patches = paths.patches_folder()
    tag = _tag(tag_name)
    patched = folder / "patched"
    for path, data in mutated_files(tag_name).items():
        (patched / path).parent.mkdir(parents=True, exist_ok=True)
        (patched / path).write_bytes(data)
    graft = series.read_series(patches, tag).graft
    runtime = cuda.unpack(patches, tag.cuda, paths.cache_folder(), folder / "cuda")
    tree = compilation.Tree(patched, installed, runtime)
    scratch = folder / "scratch"
    scratch.mkdir()
    libraries = [
        library for library in graft.libraries if not library.requires or (installed / library.requires).exists()
    ]
    built = compilation.build_libraries(libraries, graft, tag.standard, tree, scratch, lambda done: None)
    target = folder / "packages"
    target.mkdir()
    shutil.copytree(installed / "torch", target / "torch", copy_function=os.symlink)
    for beside in installed.iterdir():  # torch's libraries look for CUDA's there
        if beside.name != "torch":
            (target / beside.name).symlink_to(beside)
    for name, library in built.items():
        (target / name).unlink()
        shutil.copyfile(library, target / name)
    return target
