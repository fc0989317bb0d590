"""The files that the patches of the classic tags start from are upstream's at the tag.

Their trees are to be had from GitHub only. But the older implementation's published patches name the hash of every file that
they edited at the tag, in their `index` lines, and some of these files are in the official wheels, too.
"""

from __future__ import annotations

import pytest

from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.git_command import blob_hash
from lmsbuild.graft import graft
from lmsbuild.patch.patch import find_patch

pytestmark = pytest.mark.build  # fetches parts of official wheels

PATCHES = paths.patches_folder()

# Git's hashes, as far as published, by tag and by the file's place in the source tree.
PUBLISHED = {
    "v1.1.0": {
        "c10/core/Allocator.h": "06b77c7b95",
        "c10/core/Storage.h": "6d86119eff",
        "c10/core/StorageImpl.h": "579ef00820",
        "c10/cuda/CUDACachingAllocator.h": "2376446a6f",
        "c10/cuda/CUDAStream.h": "7f7f8640ae",
        "torch/cuda/__init__.py": "94fa9b6b4f",
    },
    "v1.2.0": {
        "c10/core/Allocator.h": "06b77c7b95",
        "c10/core/Storage.h": "6d86119eff",
        "c10/core/StorageImpl.h": "579ef00820",
        "c10/cuda/CUDACachingAllocator.h": "2376446a6f",
        "c10/cuda/CUDAStream.h": "b23f8aa1c6",
        "torch/cuda/__init__.py": "411cfb7315",
    },
    "v1.3.0": {
        "c10/core/Allocator.h": "06b77c7b95",
        "c10/core/Storage.h": "6d86119eff",
        "c10/core/StorageImpl.h": "579ef00820",
        "c10/cuda/CUDACachingAllocator.h": "2376446a6f",
        "c10/cuda/CUDAStream.h": "b23f8aa1c6",
        "torch/cuda/__init__.py": "8450f27812",
    },
    "v1.3.1": {
        "c10/core/Allocator.h": "06b77c7b95",
        "c10/core/Storage.h": "6d86119eff",
        "c10/core/StorageImpl.h": "579ef00820",
        "c10/cuda/CUDACachingAllocator.h": "2376446a6f",
        "c10/cuda/CUDAStream.h": "b23f8aa1c6",
        "torch/cuda/__init__.py": "8450f27812",
    },
    "v1.4.0": {
        "c10/core/Allocator.h": "06b77c7b95",
        "c10/core/StorageImpl.h": "579ef00820",
        "c10/cuda/CUDACachingAllocator.h": "31f9d3a167",
        "c10/cuda/CUDAStream.h": "b23f8aa1c6",
        "torch/cuda/memory.py": "1c49bd1887",
    },
    "v1.5.0": {
        "c10/core/Allocator.h": "06b77c7b95",
        "c10/core/StorageImpl.h": "871ddb3831",
        "c10/cuda/CUDACachingAllocator.h": "fecd12179e",
        "c10/cuda/CUDAStream.h": "b23f8aa1c6",
        "torch/cuda/memory.py": "fe38036173",
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_wheel_has_the_files_of_the_tag(name: str) -> None:
    tag = catalogue.find_tag(PATCHES, name, "pytorch")
    patch = find_patch(PATCHES, tag)
    assert dict(patch.edited) == dict(tag.blobs)
    places = {path: path if path.startswith("torch/") else f"torch/include/{path}" for path in PUBLISHED[name]}
    contents = graft.read_members(tag, [*places.values(), *tag.blobs], paths.cache_folder(), None)
    hashes = {path: blob_hash(contents[place]) for path, place in places.items()}
    assert {path: digest[:10] for path, digest in hashes.items()} == PUBLISHED[name]
    assert {path: blob_hash(contents[path]) for path in tag.blobs} == dict(tag.blobs)
