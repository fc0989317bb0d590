"""Builds the simulated CUDA: a folder with libcuda.so.1, libcudart.so.RELEASE for every release in RUNTIMES, and libnccl.so.2.

From a test: `libraries(folder)`, and then `environment(...)` for the program that is to run on them. From a shell:
`python build.py FOLDER` prints the folder of the libraries.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMON = ["-std=c++17", "-fPIC", "-fvisibility=hidden"]
# By path, since this module is loaded so as well.
_FLAVOURS = runpy.run_path(str(HERE.parents[1] / "pager/flavours.py"))
FLAVOURS = {name: _FLAVOURS["flags"](name) for name in _FLAVOURS["FLAVOURS"]}
LISTS_FUNCTIONS = "api"  # which of the sources says what functions there are
DRIVER = ["settings", "sharers", "clock", "calls", "codes", "memory", "streams", "api", "driver"]
RUNTIMES = {"10.1": 10010, "10.2": 10020, "11.0": 11070, "12": 12040, "13": 13000}  # by soname
KEPT_S = 24 * 3600
LAUNCHER = [found] if (found := shutil.which("ccache")) else []  # the words before the compiler's


def libraries(
    folder: Path, flavour: str = "plain", without: Sequence[str] = (), releases: Sequence[str] = tuple(RUNTIMES)
) -> Path:
    """The folder of the libraries, below `folder`, which keeps them until the sources change.

    `without`: driver functions that the libraries shall lack, as an older driver does (with _v2 where cuda.h has it).
    `releases`: of the runtime.
    """
    compiler = os.environ.get("CXX", "g++")
    sources = sorted(path for path in HERE.iterdir() if path.suffix in (".h", ".cc", ".txt", ".py"))
    digest = hashlib.sha256(repr((compiler, COMMON, FLAVOURS[flavour], sorted(without), sorted(releases))).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    finished = folder.resolve() / f"simulator-{flavour}-{digest.hexdigest()[:16]}"
    if finished.exists():
        os.utime(finished)
        return finished
    unfinished = finished.with_name(f"{finished.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    _build(unfinished, [compiler, *COMMON, *FLAVOURS[flavour]], without, releases)
    try:
        unfinished.rename(finished)
    except OSError:  # another process was faster
        if not finished.exists():
            raise
        _remove(unfinished)
    for old in folder.glob(f"simulator-{flavour}-*"):
        if old.is_dir() and old != finished and old.stat().st_mtime < time.time() - KEPT_S:
            _remove(old)
    return finished


def environment(
    folder: Path,
    release: str | None = None,
    options: Mapping[str, object] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of a program that uses the libraries in `folder`, with options of sim.h.

    With a release of RUNTIMES the libraries are preloaded: a wheel's own search path would come before
    LD_LIBRARY_PATH.
    """
    result = dict(os.environ if base is None else base)
    if release is not None:
        result["LD_PRELOAD"] = f"{folder}/libcuda.so.1 {folder}/libcudart.so.{release}"
    result["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), result.get("LD_LIBRARY_PATH", ""))))
    for name, value in (options or {}).items():
        result[f"SIM_CUDA_{name.upper()}"] = str(value)
    return result


def runtime_symbols(release: str) -> list[str]:
    """What libcudart exports in a release."""
    rows = (HERE / "runtime_symbols.txt").read_text().splitlines()
    return [row.split()[-1] for row in rows if not row.startswith("#") and release in row.split()[:-1]]


def _build(folder: Path, compile_: list[str], without: Sequence[str], releases: Sequence[str]) -> None:
    names = ",".join(f'"{name}"' for name in without)
    defines = [f"-DSIM_WITHOUT={{{names}}}"] if without else []
    jobs: list[list[str]] = []

    def compile_later(name: str, output: str, *defined: str) -> None:
        jobs.append([*LAUNCHER, *compile_, *defined, "-c", str(HERE / f"{name}.cc"), "-o", str(folder / output)])

    for name in (*DRIVER, "nccl"):
        compile_later(name, f"{name}.o", *(defines if name == LISTS_FUNCTIONS else []))
    for release in releases:
        compile_later("runtime", f"runtime{release}.o", f"-DSIM_CUDART={RUNTIMES[release]}")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, jobs))
    script = folder / "driver.map"
    hidden = "".join(f"{name};" for name in without)
    script.write_text("{ global: *; " + (f"local: {hidden} " if hidden else "") + "};\n")
    objects = [str(folder / f"{name}.o") for name in DRIVER]
    link = [*compile_, "-shared", "-Wl,-z,now"]
    run([*link, *objects, "-Wl,-soname,libcuda.so.1", f"-Wl,--version-script={script}", "-o", f"{folder}/libcuda.so.1"])
    own = ["-Wl,-soname,libnccl.so.2", "-Wl,-rpath,$ORIGIN", "-o", f"{folder}/libnccl.so.2"]
    run([*link, str(folder / "nccl.o"), f"{folder}/libcuda.so.1", *own])
    for release in releases:
        _link_runtime(folder, release, compile_, link)
    run([*link, str(HERE / "turns.cc"), "-ldl", "-o", f"{folder}/libturns.so"])
    for path in [*folder.glob("*.o"), *folder.glob("*.map"), *folder.glob("refused*.cc")]:
        path.unlink()


def _link_runtime(folder: Path, release: str, compile_: list[str], link: list[str]) -> None:
    name = f"libcudart.so.{release}"
    own = folder / f"runtime{release}.o"
    defined = set(re.findall(r" T (\w+)$", run(["nm", str(own)]), re.MULTILINE))
    refused = folder / f"refused{release}.cc"
    rows = ['#include "calls.h"']
    for symbol in runtime_symbols(release):
        if symbol not in defined:
            rows.append(f'extern "C" __attribute__((visibility("default"))) int {symbol}(void);')
            rows.append(f'extern "C" __attribute__((visibility("default"))) int {symbol}(void) {{')
            rows.append("  ENTER(sim::need_nothing)")
            rows.append("  sim::last_error() = sim::not_supported;")
            rows.append("  return sim::not_supported;")
            rows.append("}")
    refused.write_text("\n".join(rows) + "\n")
    run([*LAUNCHER, *compile_, f"-I{HERE}", "-c", str(refused), "-o", str(refused.with_suffix(".o"))])
    script = folder / f"{name}.map"
    exported = " ".join(f"{symbol};" for symbol in runtime_symbols(release))
    script.write_text(f"{name} {{ global: {exported} local: *; }};\n")
    objects = [str(own), str(refused.with_suffix(".o")), f"{folder}/libcuda.so.1"]
    flags = [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-Wl,-rpath,$ORIGIN"]
    run([*link, *objects, *flags, "-o", f"{folder}/{name}"])


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flavour", choices=FLAVOURS, default="plain")
    parser.add_argument("--without", nargs="*", default=[], metavar="FUNCTION")
    arguments = parser.parse_args()
    print(libraries(arguments.folder, arguments.flavour, arguments.without))


if __name__ == "__main__":
    main()
