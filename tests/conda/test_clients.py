"""Channels as clients have them: py-rattler always, and conda, conda-build and conda-index where there is a conda.

`LMS_TEST_CONDA` names it, if it is not in PATH.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rattler_build import assemble_package

import small_wheels
from lmsbuild import paths
from lmsbuild.channel import channel, index
from lmsbuild.conda import package_file, packager
from solving import solve
from stand_ins import SUBDIR, make
from test_channel import add_exports

Run = Callable[..., str]


def numbered(folder: Path, number: int, **about: str) -> Path:
    """The package `small` of that build number, with a file that says it."""
    files = folder / f"files-{number}"
    (files / "share").mkdir(parents=True)
    (files / "share/number").write_text(str(number))
    made = assemble_package(
        "small",
        "1.0",
        SUBDIR,
        f"h_{number}",
        folder,
        files_dir=files,
        build_number=number,
        detect_prefix=False,
        **about,
    )
    return Path(made.path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The folder of a channel, and its address."""
    folder = tmp_path / "channel"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *words: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_rattler_prefers_what_was_rebuilt(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    for number in (2, 10):
        channel.publish(folder, [numbered(tmp_path, number)])
        for place in (folder.as_uri(), address):
            (record,) = solve(place, specs=("small",))
            assert (record.build_number, record.url) == (number, f"{place}/{SUBDIR}/small-1.0-h_{number}.conda")


@pytest.fixture(scope="session")
def conda() -> Path:
    found = os.environ.get("LMS_TEST_CONDA") or shutil.which("conda")
    if not found:
        pytest.skip("needs conda, in PATH or named by LMS_TEST_CONDA")
    return Path(found)


@pytest.fixture
def run(conda: Path, tmp_path: Path) -> Run:
    """Runs conda, with no settings but these, and returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONDA_", "PYTHON"))}
    # The classic solver would want a pip of the stand-in for Python.
    settings = {"CONDARC": os.devnull, "CONDA_ADD_PIP_AS_PYTHON_DEPENDENCY": "no"}
    settings |= {"CONDA_PKGS_DIRS": str(tmp_path / "pkgs"), "CONDA_BLD_PATH": str(tmp_path / "built")}
    variables = {**kept, **settings}

    def run(*words: object, solver: str = "classic", program: Path = conda) -> str:
        line = [str(word) for word in (program, *words)]
        variables["CONDA_SOLVER"] = solver
        done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    return run


@pytest.fixture(params=["classic", "libmamba", "rattler"])
def solver(request: pytest.FixtureRequest, run: Run) -> str:
    known = re.search(r"--solver \{([\w,-]+)\}", run("create", "--help"))
    if not known or request.param not in known[1].split(","):
        pytest.skip(f"needs a conda with the solver {request.param}")
    return str(request.param)


def packages(run: Run, prefix: Path) -> dict[str, str]:
    """Build strings of what conda says is in an environment, by name."""
    rows = json.loads(run("list", "--prefix", prefix, "--json"))
    return {row["name"]: row["build_string"] for row in rows}


def test_conda_installs_updates_and_removes(run: Run, solver: str, served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    prefix = tmp_path / "env"
    at = ("--yes", "--quiet", "--prefix", prefix, "--override-channels", "--channel", address)
    channel.publish(folder, [numbered(tmp_path, 2)])
    run("create", *at, "small", solver=solver)
    assert packages(run, prefix) == {"small": "h_2"}
    channel.publish(folder, [numbered(tmp_path, 10)])
    assert "h_10" in run("search", "--override-channels", "--channel", address, "small")
    run("update", *at, "small", solver=solver)
    assert packages(run, prefix) == {"small": "h_10"}
    assert (prefix / "share/number").read_text() == "10"
    assert "small=1.0=h_10" in run("env", "export", "--prefix", prefix)
    run("remove", *at, "small", solver=solver)
    assert packages(run, prefix) == {} and not (prefix / "share/number").exists()
    run("install", *at, "--offline", "small=1.0=h_2", solver=solver)
    assert packages(run, prefix) == {"small": "h_2"}


def test_the_package_trains_where_conda_installed_it(
    run: Run, solver: str, lms_channel: Path, other_channel: Path, tmp_path: Path
) -> None:
    prefix = tmp_path / "env"
    channels = ("--override-channels", "--channel", lms_channel.as_uri(), "--channel", other_channel.as_uri())
    run(
        "create",
        "--yes",
        "--quiet",
        "--prefix",
        prefix,
        *channels,
        "--strict-channel-priority",
        "pytorch",
        solver=solver,
    )
    assert "lms1" in packages(run, prefix)["pytorch"]
    printed = run(paths.recipes_folder() / "pytorch/paging.py", program=prefix / "bin/python")
    assert "losses equal to the bit" in printed
    run("remove", "--yes", "--quiet", "--offline", "--prefix", prefix, "pytorch", solver=solver)
    assert not list(prefix.glob("lib/python*/site-packages/torch/**/*.so"))
    shutil.rmtree(prefix)


@pytest.fixture
def base_python(conda: Path, run: Run) -> Callable[[str], Path]:
    """The interpreter that runs conda, if it has the module."""
    python = Path(json.loads(run("info", "--json"))["root_prefix"]) / "bin/python"

    def find(module: str) -> Path:
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
            pytest.skip(f"needs {module} beside conda")
        return python

    return find


def test_the_index_is_that_of_conda_index(base_python: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    """But for a key without a value, that of twins in the older format."""
    python = base_python("conda_index")
    exports = {"weak": ["one >=1"], "strong": ["two"]}
    made = [make(tmp_path, "one", version, depends=["two <2"]) for version in ("1.9", "1.10", "1.10.1")]
    made += [make(tmp_path, "two", version) for version in ("1", "2")]
    made += [make(tmp_path, "three", build=build, files={"etc/conda/activate.d/three.sh": b""}) for build in "01"]
    made += [add_exports(make(tmp_path, "four", version), exports, ".conda") for version in ("1", "2")]
    made += [make(tmp_path, "five", files={"bin/.five-post-link.sh": b""}, subdir="noarch")]
    made += [numbered(tmp_path, 1, homepage="https://example.org", summary="s", description="d", license="MIT")]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    channel.publish(ours, made)
    shutil.copytree(ours, theirs, ignore=shutil.ignore_patterns("*.json", "*.zst"))
    options = ("--run-exports", "--current-repodata", "--channeldata", "--threads", "1")
    run("-m", "conda_index", *options, theirs, program=python)
    for name in (index.CHANNELDATA, *(f"{subdir}/{name}" for subdir in (SUBDIR, "noarch") for name in index.FILES)):
        expected = channel.read_table(theirs / name)
        for record in expected.get("packages.conda", {}).values():
            assert record.pop("legacy_bz2_md5", None) is None
        assert channel.read_table(ours / name) == expected, name


def test_conda_build_makes_the_packages(base_python: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    base_python("conda_build")
    recipes = paths.recipes_folder()
    wheel = small_wheels.write(tmp_path)
    own = packager.build(packager.Options(wheel, recipes, tmp_path / "dist", (), test=False, level=1))
    recipe = packager.prepare(wheel, recipes, tmp_path / "package")
    (tmp_path / "none/noarch").mkdir(parents=True)
    channel.publish(tmp_path / "none", [])
    channels = ("--override-channels", "--channel", (tmp_path / "none").as_uri())
    run("build", recipe, "-m", recipe / "variants.yaml", "--no-test", *channels)
    for package in own:
        (built,) = (tmp_path / "built").rglob(package.name)
        described = [package_file.read_description(path) for path in (package, built)]
        for found in described:
            del found["index"]["timestamp"]
            for row in found["paths"]["paths"]:  # where it was built
                row.pop("prefix_placeholder", None)
        names = [sorted(row["_path"] for row in found["paths"]["paths"]) for found in described]
        assert described[0]["index"] == described[1]["index"] and names[0] == names[1]
