"""The CUDA allocator of a release, and programs on it, for another kind of machine: libc10_cuda.so is built from upstream's
source, libc10.so is Debian's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import allocator_programs
from lmsbuild import paths
from lmsbuild.catalogue import catalogue, debian_builds
from machines import POWER, Machine, fetch_packages, make_root

HERE = Path(__file__).parent
TAG = "v1.13.1"  # the one that Debian has for these machines
CUDART = "11.0"
PACKAGES = {"libtorch1.13": "libc10.so.1.13", "libgoogle-glog0v6": "libglog.so.1", "libgflags2.2": "libgflags.so.2.2"}
PACKAGES |= {"libnuma1": "libnuma.so.1"}


@dataclass(frozen=True)
class Programs:
    """What was built for one kind of machine."""

    base: allocator_programs.Allocator
    simulator: Path
    folder: Path
    root: Path

    def build(self, source: str) -> Path:
        program = self.folder / Path(source).stem
        if not program.exists():
            allocator_programs.build(self.base, HERE / source, self.simulator, "plain", program, self.folder)
        return program


def prepare(machine: Machine, simulator: Callable[..., Path], folder: Path) -> Programs:
    """Builds with $CXX, which is the compiler for the machine."""
    cache = paths.cache_folder()
    build = debian_builds.find(
        paths.patches_folder(), catalogue.find_tag(paths.patches_folder(), TAG, "pytorch"), machine.name
    )
    # Where packages are made of Debian's build, all that those take come together.
    tree = fetch_packages(machine.debian, build.packages if build else list(PACKAGES), cache)
    libraries = [tree / "usr/lib" / machine.triple / name for name in PACKAGES.values()]
    simulated = simulator(releases=[CUDART])
    runtime = simulated / f"libcudart.so.{CUDART}"
    base = allocator_programs.prepare_elsewhere(TAG, libraries[0], runtime, folder)
    allocator_programs.build_library(base, HERE / "late_library.cc", folder / "late_library.so")
    own = [runtime, simulated / "libcuda.so.1", base.c10_cuda, folder / "late_library.so"]
    make_root(machine, [*libraries, *own], folder / "root")
    programs = Programs(base, simulated, folder, folder / "root")
    programs.build("stress.cc")
    if machine == POWER:
        programs.build("object_units.cc")
    return programs
