"""What pip and uv take from an index of wheels, and every command in docs/pip.md, run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pip
import pytest
from packaging.version import Version

from lmsbuild.index import index
from lmsbuild.wheel.wheel import file_sha256
from served import Server, serving, wheel
from synthetic import Member

pytestmark = pytest.mark.build  # runs pip and uv

TOOL = Path(index.__file__).parents[2]
PAGE = (Path(__file__).parents[2] / "docs/pip.md").read_text()
OURS = "2.13.0+cpu.lms1"
CUDA = "2.13.0+cu130.lms1"
DEFAULT_CUDA = "2.13.0+lms1"  # of the wheel that the default index has
HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"


@dataclass(frozen=True)
class Place:
    """Indices that a server shows, and programs that take the one called public for the public one."""

    folder: Path
    server: Server
    variables: dict[str, str]

    def address(self, name: str) -> str:
        return f"{self.server.address}/{name}"

    def run(self, *words: str | Path, code: int = 0) -> str:
        """What a program printed."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == code, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if code else "")

    def pip(self, *words: str | Path, code: int = 0) -> str:
        return self.run(sys.executable, "-m", "pip", *words, code=code)

    def uv(self, *words: str | Path, code: int = 0) -> str:
        return self.run("uv", *words, code=code)

    def pip_takes(self, *words: str) -> str:
        """The version of torch that pip would install into an empty environment."""
        report = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-")
        (row,) = json.loads(self.pip("install", *report, *words))["install"]
        return str(row["metadata"]["version"])

    def uv_takes(self, requirement: str, *words: str) -> str:
        (self.folder / "requirements.in").write_text(f"{requirement}\n")
        printed = self.uv("pip", "compile", "--quiet", "--no-deps", "--no-header", *words, "requirements.in")
        return printed.split()[0].partition("==")[2]


@pytest.fixture(scope="module")
def indices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of stock wheels, `public`, and with others of patched ones."""
    folder, made = tmp_path_factory.mktemp("indices"), tmp_path_factory.mktemp("wheels")
    requires = ["small>=1"]
    stock = [wheel(made, version=version, requires=requires) for version in ("2.13.0", "2.15.0")]
    index.publish(folder / "public", [*stock, wheel(made, "small", "1.0"), wheel(made, "torchvision", "0.28.0")])
    ours, cuda, default = (wheel(made, version=version, requires=requires) for version in (OURS, CUDA, DEFAULT_CUDA))
    index.publish(folder / "cpu", [ours])
    index.publish(folder / "cu130", [cuda])
    index.publish(folder / "both", [ours, cuda])
    index.publish(folder / "three", [ours, cuda, default])
    index.publish(folder / "elsewhere", [wheel(made, version=OURS, tags="cp39-cp39-manylinux_2_34_x86_64")])
    index.publish(folder / "unsatisfied", [wheel(made, version="9.0+lms1", requires=["small>=2"])])
    return folder


@pytest.fixture
def place(indices: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    with serving(indices, as_json=getattr(request, "param", "") == "json") as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON"))}
        variables = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_INDEX_URL": f"{server.address}/public",
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "UV_DEFAULT_INDEX": f"{server.address}/public",
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
        }
        yield Place(tmp_path, server, variables)


def test_a_wheel_and_what_it_requires(place: Place) -> None:
    """From the patched wheels' index and the public one, into a folder; the hash in the index is that of the wheel."""
    place.pip("install", "--target", "by-pip", f"torch=={OURS}", "--extra-index-url", place.address("cpu"))
    place.uv("pip", "install", "--target", "by-uv", f"torch=={OURS}", "--index", place.address("cpu"))
    for name in ("by-pip", "by-uv"):
        assert repr(OURS) in (place.folder / name / "torch/__init__.py").read_text()
        assert (place.folder / name / "small/__init__.py").is_file()


def test_a_folder_without_a_server(place: Place, indices: Path) -> None:
    address = (indices / "cpu").as_uri()
    assert place.pip_takes(f"torch=={OURS}", "--extra-index-url", address) == OURS
    assert place.uv_takes(f"torch=={OURS}", "--index", address) == OURS


@pytest.mark.parametrize(
    ("place", "page"), [("html", "torch/"), ("json", "torch/index.json")], indirect=["place"], ids=["html", "json"]
)
def test_metadata_is_enough_to_refuse_a_wheel(place: Place, page: str) -> None:
    """Neither client downloads a wheel that requires what there is not; pip before 23.2 does when the index is JSON."""
    here = place.address("unsatisfied")
    said = place.pip("install", "--dry-run", "--ignore-installed", "torch==9", "--extra-index-url", here, code=1)
    assert "small>=2" in said
    whole, metadata = (f"/unsatisfied/torch-9.0%2Blms1-py3-none-any.whl{suffix} 200" for suffix in ("", ".metadata"))
    asked = [line for line in place.server.asked if "/torch-9.0" in line]
    reads_core_metadata = Version(pip.__version__) >= Version("23.2")  # PEP 714: in JSON the key has no other name
    assert asked == [metadata if reads_core_metadata or "json" not in page else whole]
    (place.folder / "requirements.in").write_text("torch==9\n")
    said = place.uv("pip", "compile", "requirements.in", "--index", here, code=1)
    assert "small>=2" in said
    assert [line for line in place.server.asked if "/torch-9.0" in line] == [*asked, metadata]
    assert place.server.asked.count(f"/unsatisfied/{page} 200") == 2


# What docs/pip.md says of requirements: what is asked for, of which indices, and what pip and uv take.
TAKEN = [
    (f"torch=={OURS}", ["cpu"], OURS, OURS),
    ("torch==2.13.0", ["cpu"], OURS, OURS),
    ("torch==2.13.0", ["elsewhere"], "2.13.0", None),
    ("torch", ["cpu"], "2.15.0", OURS),
    ("torch==2.13.0", ["both"], CUDA, CUDA),
    ("torch==2.13.0", ["three"], DEFAULT_CUDA, DEFAULT_CUDA),
    ("torch==2.13.0", ["cpu", "cu130"], CUDA, OURS),
]


@pytest.mark.parametrize(("requirement", "names", "pip", "uv"), TAKEN)
def test_which_wheel_a_requirement_gets(
    place: Place, requirement: str, names: list[str], pip: str, uv: str | None
) -> None:
    addresses = [place.address(name) for name in names]
    extra = [word for address in addresses for word in ("--extra-index-url", address)]
    assert place.pip_takes(requirement, *extra) == pip
    words = [word for address in addresses for word in ("--index", address)]
    if uv is None:
        (place.folder / "requirements.in").write_text(requirement)
        options = ("--no-deps", "--quiet", "--target", "out")
        assert "No solution found" in place.uv("pip", "install", *options, requirement, *words, code=1)
        place.pip("install", *options, f"torch=={OURS}", *extra, code=1)  # the whole version: an error here, too
    else:
        assert place.uv_takes(requirement, *words) == uv


def test_uv_can_choose_as_pip_does(place: Place) -> None:
    words = ("--index-strategy", "unsafe-best-match", "--index", place.address("cpu"))
    assert place.uv_takes("torch", *words) == "2.15.0"


def test_what_is_installed_already(place: Place) -> None:
    place.uv("venv", "--quiet", "env")
    place.uv("pip", "install", "--python", "env", "torch==2.13.0")
    pip = ("--python", place.folder / "env/bin/python", "install", "--dry-run")
    extra = ("--extra-index-url", place.address("cpu"))
    assert "already satisfied: torch==2.13.0" in place.pip(*pip, "torch==2.13.0", *extra)
    for words in (["--upgrade", "torch==2.13.0"], [f"torch=={OURS}"]):
        assert f"Would install torch-{OURS}" in place.pip(*pip, *words, *extra)


def test_a_wheel_that_is_not_the_one_in_the_index(place: Place, indices: Path, tmp_path: Path) -> None:
    """Both clients refuse it, by the hash in the index or by one of their own; neither installs anything."""
    folder = tmp_path / "index"
    shutil.copytree(indices / "cpu", folder)
    (served,) = folder.glob("*.whl")
    requirements = place.folder / "requirements.txt"
    requirements.write_text(f"torch=={OURS} --hash=sha256:{file_sha256(served)}\n")
    wheel(folder, version=OURS, files={"torch/more.py": Member(b"")})
    with serving(folder) as server:
        extra = ("--no-deps", "--target", "out")
        for words in ((f"torch=={OURS}",), ("--require-hashes", "--requirement", requirements)):
            said = place.pip("install", *extra, *words, "--extra-index-url", server.address, code=1)
            assert "DO NOT MATCH THE HASHES" in said
            said = place.uv("pip", "install", *extra, *words, "--index", server.address, code=1)
            assert "Hash mismatch" in said
    assert not (place.folder / "out/torch").exists()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


BUILD = "lmsbuild pytorch v2.13.0"  # tests/conftest.py runs it
USE = "python -c "  # its result is that of the README's commands, which tests/examples runs


def test_every_command_of_the_page(place: Place, indices: Path) -> None:
    """In the order of the page, with stand-ins for the wheel that its first line builds, and for what is public."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert lines[0] == BUILD and lines[-1].startswith(USE)
    (place.folder / "dist").mkdir()
    (ours,) = (indices / "cpu").glob("*.whl")
    shutil.copy(ours, place.folder / "dist")
    place.uv("venv", "--quiet", "env")
    pip = place.folder / "env/bin/pip"
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {place.folder}/env/bin/python "$@"\n')
    pip.chmod(0o755)
    place.variables.update(
        PATH=f"{pip.parent}:{place.variables['PATH']}", VIRTUAL_ENV=str(pip.parents[1]), PYTHONPATH=str(TOOL)
    )
    with serving(place.folder / "wheels") as server:
        for line in lines[1:-1]:
            for package in ("torch", "small") if " install " in line else ():
                place.uv("pip", "uninstall", "--quiet", package)
            place.run("sh", "-c", line.replace("https://wheels.example", server.address))
            assert (place.folder / "wheels/cpu/torch/index.html").is_file()
            if " install " in line:
                (installed,) = (place.folder / "env").glob("lib/*/site-packages/torch-*.dist-info")
                assert installed.name == f"torch-{OURS}.dist-info", line
    assert "lmsbuild index wheels/cpu" in PAGE and "lmsbuild index wheels/cpu" in lines[1]


def test_the_project_of_the_page(place: Place) -> None:
    (text,) = blocks("toml")
    (place.folder / "pyproject.toml").write_text(text.replace("https://wheels.example", place.server.address))
    place.uv("lock")
    lock = (place.folder / "uv.lock").read_text()
    package = next(part for part in lock.split("[[package]]") if 'name = "torch"' in part)
    (ours,) = (Path(name) for name in re.findall(r'url = "[^"]*/([^"/]*\.whl)", hash = "sha256:[0-9a-f]{64}"', package))
    assert ours.name.replace("%2B", "+").startswith(f"torch-{OURS}-")
    assert not [line for line in place.server.asked if line.startswith("/cpu/small")]  # explicit
    place.uv("sync")
    assert OURS in place.run(".venv/bin/python", "-c", "import torch; print(torch.__version__)")
