"""Conda packages for tests: small ones, and those that stand in for what other channels have.

The stand-ins, all of them: `python` is a virtual environment of the interpreter that runs the tests; the packages in
`PURE_PYTHON` and `TENSORFLOW` hold what pip installed of them; `libgomp` holds the compiler's; `EMPTY` ones hold nothing, since this
machine itself has what they bring.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rattler_build import assemble_package

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
ABI = f"cp{sys.version_info.major}{sys.version_info.minor}"
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64", "ppc64le": "linux-ppc64le"}[platform.machine()]
# Conda's name, the Python registry's.
PURE_PYTHON = {
    "filelock": "filelock",
    "fsspec": "fsspec",
    "jinja2": "jinja2",
    "markupsafe": "markupsafe",
    "mpmath": "mpmath",
    "networkx": "networkx",
    "numpy": "numpy",
    "pip": "pip",
    "setuptools": "setuptools",
    "sympy": "sympy",
    "typing_extensions": "typing-extensions",
}
TENSORFLOW = {
    "absl-py": "absl-py",
    "astunparse": "astunparse",
    "certifi": "certifi",
    "cffi": "cffi",
    "charset-normalizer": "charset-normalizer",
    "cryptography": "cryptography",
    "gast": "gast",
    "google-auth": "google-auth",
    "google-auth-oauthlib": "google-auth-oauthlib",
    "google-pasta": "google-pasta",
    "grpcio": "grpcio",
    "h5py": "h5py",
    "idna": "idna",
    "keras": "keras",
    "markdown": "markdown",
    "markupsafe": "markupsafe",
    "ml_dtypes": "ml-dtypes",
    "numpy": "numpy",
    "oauthlib": "oauthlib",
    "opt_einsum": "opt-einsum",
    "packaging": "packaging",
    "pip": "pip",
    "protobuf": "protobuf",
    "pyasn1": "pyasn1",
    "pyasn1-modules": "pyasn1-modules",
    "pycparser": "pycparser",
    "python-flatbuffers": "flatbuffers",
    "requests": "requests",
    "requests-oauthlib": "requests-oauthlib",
    "setuptools": "setuptools",
    "six": "six",
    "tensorboard": "tensorboard",
    "tensorboard-data-server": "tensorboard-data-server",
    "termcolor": "termcolor",
    "typing_extensions": "typing-extensions",
    "urllib3": "urllib3",
    "werkzeug": "werkzeug",
    "wheel": "wheel",
    "wrapt": "wrapt",
}
REQUIRES = {
    "astunparse": ["wheel"],
    "cffi": ["pycparser"],
    "cryptography": ["cffi"],
    "google-auth": ["cryptography", "pyasn1", "pyasn1-modules"],
    "google-auth-oauthlib": ["google-auth", "requests-oauthlib"],
    "jinja2": ["markupsafe"],
    "requests": ["certifi", "charset-normalizer", "idna", "urllib3"],
    "requests-oauthlib": ["oauthlib"],
    "sympy": ["mpmath"],
    "tensorboard": ["google-auth-oauthlib", "markdown", "requests", "tensorboard-data-server", "werkzeug"],
    "werkzeug": ["markupsafe"],
}
EMPTY = {"libgcc": "15.2.0", "libstdcxx": "15.2.0", "python_abi": VERSION}
OPENMP = ("_openmp_mutex", "libgomp")


def make(
    folder: Path,
    name: str = "small",
    version: str = "1.0",
    build: str = "0",
    *,
    files: dict[str, bytes] | None = None,
    depends: Sequence[str] = (),
    constrains: Sequence[str] = (),
    build_number: int = 0,
    subdir: str = SUBDIR,
    tree: Path | None = None,
) -> Path:
    """Makes a package with these files, or with all that is in `tree`, in the folder, and returns it."""
    scratch = folder / f"{name}-{version}-{build}.files"
    if tree is None:
        for path, data in (files or {"share/small.txt": b"small\n"}).items():
            target = scratch / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    made = assemble_package(
        name,
        version,
        subdir,
        build,
        folder,
        files_dir=tree or scratch,
        depends=list(depends),
        constrains=list(constrains),
        build_number=build_number,
        compression_level=1,
        noarch="generic" if subdir == "noarch" else None,
        detect_prefix=False,
    )
    if tree is None:
        shutil.rmtree(scratch)
    return Path(made.path)


def make_stand_ins(folder: Path, python: Path, packages: Mapping[str, str] = PURE_PYTHON) -> list[Path]:
    """Makes every stand-in; `python` is an interpreter that has these packages installed."""
    made = [_python(folder), *_openmp(folder)]
    made += [make(folder, name, version, _build(name)) for name, version in EMPTY.items()]
    return [*made, *make_installed(folder, python, packages)]


def make_installed(
    folder: Path, python: Path, packages: Mapping[str, str], version: str = VERSION, subdir: str = SUBDIR
) -> list[Path]:
    """Makes packages of what pip installed for `python`, for another version or platform if they are the same there."""
    made = []
    for name, package in packages.items():
        tree = folder / f"{name}.tree"
        number = _installed(python, package, tree / f"lib/python{version}/site-packages")
        made.append(make(folder, name, number, "0", tree=tree, depends=REQUIRES.get(name, []), subdir=subdir))
        shutil.rmtree(tree)
    return made


def _build(name: str) -> str:
    return f"0_{ABI}" if name == "python_abi" else "0"


def _openmp(folder: Path) -> list[Path]:
    """GCC's runtime, and the package that says that it is the environment's."""
    words = ["g++", "-print-file-name=libgomp.so.1"]
    library = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    mutex, runtime = OPENMP
    (folder / "mutex/lib").mkdir(parents=True)
    (folder / "mutex/lib/libgomp.so.1").symlink_to("libgomp.so.1.0.0")
    return [
        make(folder, mutex, "4.5", "20_gnu", depends=[f"{runtime} >=7.5.0"], tree=folder / "mutex"),
        make(folder, runtime, "15.2.0", files={"lib/libgomp.so.1.0.0": library.read_bytes()}),
    ]


def _python(folder: Path) -> Path:
    tree = folder / "python.tree"
    (tree / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.base_prefix) / f"bin/python{VERSION}", tree / "bin/python")  # links lead out of no package
    (tree / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n")
    made = make(folder, "python", platform.python_version(), f"0_{ABI}", tree=tree)
    shutil.rmtree(tree)
    return made


_FILES = """
import importlib.metadata, sys
package = importlib.metadata.distribution(sys.argv[1])
print(package.version)
print(package.locate_file(""))
for file in package.files:
    print(file)
"""


def _installed(python: Path, package: str, target: Path) -> str:
    """Copies what pip installed of a package; returns its version."""
    done = subprocess.run([python, "-c", _FILES, package], capture_output=True, text=True, check=True)
    version, source, *files = done.stdout.splitlines()
    for file in files:
        if not file.startswith("..") and "__pycache__" not in file:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(source) / file, target / file)
    return version
