"""What the tests keep from run to run, in any checkout: wheels, environments and what compilers made, each under what it is made of.

LMS_TEST_CACHE names the folder; without it, it is one in the user's cache.
"""

from __future__ import annotations

import ast
import atexit
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import platformdirs
from filelock import FileLock

from lmsbuild.fetch import pip_command
from lmsbuild.graft import compilation
from lmsbuild.wheel.name import parse_name
from lmsbuild.wheel.wheel import file_sha256

ROOT = Path(__file__).resolve().parents[2]
_MOST = 3  # wheels of one name; the others were made of other sources
_DAY = 86400  # seconds in which nothing is removed that another run may use
_users: list[IO[str]] = []  # locks that say, until this process ends, that it uses an environment


def folder() -> Path:
    """Where all of it is."""
    chosen = os.environ.get("LMS_TEST_CACHE")
    return Path(chosen).resolve() if chosen else platformdirs.user_cache_path("lmsbuild-tests")


def compiler_cache() -> dict[str, str]:
    """Variables for programs that compile through ccache, if there is one: equal sources give the same object in any checkout."""
    settings = {
        "CCACHE_DIR": folder() / "ccache",
        "CCACHE_BASEDIR": ROOT,
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_MAXSIZE": "4G",
    }
    return {name: str(value) for name, value in settings.items()}


def launcher() -> list[str]:
    """The words before a compiler's own; none without ccache."""
    found = shutil.which("ccache")
    return [found] if found else []


def cached_compiler() -> dict[str, str]:
    """The variable by which `lmsbuild` compiles through ccache, if there is one and the user names no compiler."""
    found = launcher()
    return {"CXX": shlex.join([*found, "g++"])} if found and "CXX" not in os.environ and shutil.which("g++") else {}


def wheel(name: str, base: str, build: Callable[[Path], Path]) -> Path:
    """The wheel that build(folder) makes of the tool, the patches and the base wheel with the hash `base`, or made before."""
    place = folder() / "wheels" / f"{name}-{_digest([base, sources()])}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):  # both processes of `-n 2` may want it
        if kept := _whole(place):
            os.utime(place)
            return kept
        shutil.rmtree(place, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
        try:
            built = build(made)
            (made / "sha256").write_text(file_sha256(built))
            made.rename(place)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        _forget(place.parent, f"{name}-*")
        return place / built.name


def environment(name: str, wheels: Sequence[Path], needs: Iterable[str] = (), interpreter: Path | None = None) -> Path:
    """The interpreter of an environment with these wheels, and what they and the program need, installed.

    When the wheels change they alone are installed again, unless another run uses the environment: then it is one more.
    """
    python = interpreter or Path(sys.executable)
    wanted = " ".join((*map(file_sha256, wheels), _version(python), *needs))
    for number in range(100):
        place = folder() / "environments" / f"{name}-{_digest([_version(python), *needs])}-{number}"
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if _installed(place) == wanted or _is_free(place):
                if _installed(place) != wanted:
                    _install(place, wanted, wheels, needs, interpreter)
                _use(place)
                return place / "bin" / "python"
    raise RuntimeError(f"a hundred environments {name} are in use in {folder()}")


def packages(name: str, python: Path, installs: Sequence[Sequence[str]]) -> Path:
    """A folder for PYTHONPATH with what each of these words of `pip install` brings, for an interpreter."""
    words = [word for install in installs for word in install]
    place = folder() / "packages" / f"{name}-{_digest([_version(python), *words])}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            made = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
            pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
            try:
                for install in installs:
                    target = ["--only-binary", ":all:", "--target", made]
                    subprocess.run([*pip, *target, *install], check=True, env=clean_environment())
                made.rename(place)
            finally:
                shutil.rmtree(made, ignore_errors=True)
        return place


def made(name: str, words: Iterable[str], fill: Callable[[Path], None]) -> Path:
    """The folder that fill(folder) fills, or did before, with what these words say. It gets its name when it is full."""
    place = folder() / "made" / f"{name}-{_digest(words)}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if place.exists():
            os.utime(place)
            return place
        unfinished = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
        try:
            fill(unfinished)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        _forget(place.parent, f"{name}-*")
        return place


def compiled(wheel: Path) -> dict[str, str]:
    """Variables for programs that compile with the PyTorch of this wheel: what it compiled before is not compiled again.

    PyTorch and Triton keep it under the hash of what it is made of.
    """
    place = made(f"compiled-{parse_name(wheel).package}", [file_sha256(wheel)], lambda place: None)
    return {"TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "TRITON_CACHE_DIR": str(place / "triton")}


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that lead another interpreter astray."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def modules(name: str) -> set[Path]:
    """The files of a module of the tool and of all that it imports, at the top of a file or in a function."""
    found: set[Path] = set()
    new = [name]
    while new:
        path = ROOT / "tools" / new.pop().replace(".", "/")
        file = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
        if file is not None and file not in found:
            found.add(file)
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    new += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    new += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


@cache
def sources(module: str = "lmsbuild.graft.graft") -> str:
    """The hash of all that a wheel is made of, beside its base: the module of the tool that makes it, with what that imports, patches,
    compiler, interpreter, pip's settings.
    """
    digest = hashlib.sha256()
    patches = {path for path in (ROOT / "patches").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    for path in sorted(patches | modules(module)):
        digest.update(f"{path.relative_to(ROOT)} {file_sha256(path)}\n".encode())
    cxx = compilation.compiler()
    said = subprocess.run([*cxx, "-v"], capture_output=True, text=True, check=False)
    for text in (
        " ".join(cxx),
        said.stderr,
        sys.version,
        pip_command.configuration(),
        os.environ.get("SOURCE_DATE_EPOCH", ""),
    ):
        digest.update(f"{text}\n".encode())
    return digest.hexdigest()


def _whole(place: Path) -> Path | None:
    """The wheel in a folder, if it is what was put there."""
    try:
        (kept,) = place.glob("*.whl")
        return kept if file_sha256(kept) == (place / "sha256").read_text() else None
    except (OSError, ValueError):
        return None


def _forget(parent: Path, pattern: str) -> None:
    """Removes all but the newest of the folders, unless they were in use lately."""
    places = sorted((path for path in parent.glob(pattern) if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    for place in places[_MOST:]:
        if time.time() - place.stat().st_mtime > _DAY:
            shutil.rmtree(place, ignore_errors=True)


def _install(place: Path, wanted: str, wheels: Sequence[Path], needs: Iterable[str], interpreter: Path | None) -> None:
    python, complete = place / "bin" / "python", place / "complete"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    variables = clean_environment()
    if complete.exists():
        complete.unlink()  # an installation that is interrupted is begun anew
        subprocess.run([*pip, "--no-deps", "--force-reinstall", *wheels], check=True, env=variables)
    else:
        shutil.rmtree(place, ignore_errors=True)
        if interpreter is None:
            venv.create(place, with_pip=True, symlinks=True)
        else:
            subprocess.run([interpreter, "-m", "venv", "--symlinks", place], check=True, env=variables)
    subprocess.run([*pip, *wheels, *needs], check=True, env=variables)
    complete.write_text(wanted)


def _installed(place: Path) -> str:
    try:
        return (place / "complete").read_text()
    except OSError:
        return ""


def _use(place: Path) -> None:
    user = Path(f"{place}.users").open("a")  # noqa: SIM115  (until this process ends)
    fcntl.flock(user, fcntl.LOCK_SH)
    _users.append(user)


@atexit.register
def _end_use() -> None:
    for user in _users:
        user.close()


def _is_free(place: Path) -> bool:
    """Whether no other process uses the environment."""
    with Path(f"{place}.users").open("a") as user:
        try:
            fcntl.flock(user, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _version(python: Path) -> str:
    return subprocess.run(
        [python, "-I", "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
