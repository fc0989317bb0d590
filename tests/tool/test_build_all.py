"""Building all rows: what is up to date is left alone, a failure stops no other row, and an interruption loses little."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

import synthetic
from lmsbuild import paths
from lmsbuild.errors import BuildUnfinished, NoCluster, OtherTool, RowsFailed
from lmsbuild.matrix import board, build_row, cluster, matrix, stamp
from lmsbuild.matrix.build_row import Job, Outcome
from lmsbuild.matrix.row import Row
from lmsbuild.wheel.wheel import WheelFile
from row_shop import NAMES, PYTHONS, SUBDIR, RowShop, leftovers, runs, wait_for
from workshop import DRIVE, Workshop

pytestmark = pytest.mark.build  # starts the tool for every row, and clusters

PRELOAD = DRIVE.with_name("dask_worker.py")


@pytest.fixture
def shop(workshop: Workshop, stand_in: dict[str, synthetic.Member], monkeypatch: pytest.MonkeyPatch) -> RowShop:
    made = RowShop(workshop, stand_in)
    made.fill()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.folder))
    return made


def _wheels(shop: RowShop) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shop.workshop.output.glob("*.whl")}


@contextmanager
def _begun(shop: RowShop, *more: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The command, at work, with the compiler that waits."""
    with subprocess.Popen(
        [sys.executable, DRIVE, shop.workshop.patches, "0", "-", *shop.words(*more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=shop.workshop.folder,
        env={**os.environ, "CXX": str(shop.compiler), "LMSBUILD_CACHE": str(shop.workshop.cache)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_failure_stops_no_other_row_and_the_next_run_builds_that_row_alone(shop: RowShop) -> None:
    publish = shop.hide(PYTHONS[1])
    done = shop.workshop.run(*shop.words("--jobs", "2"))
    assert done.returncode == RowsFailed.exit_code, done.stderr
    assert f"1 of 3 rows failed: {NAMES[1]}; " in " ".join(done.stderr.split())
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [[NAMES[0], "built"], [NAMES[1], "failed"], [NAMES[2], "built"]]
    assert "pip found no wheel" in lines[1][3]
    assert {line[3] for line in lines} - {lines[1][3]} == set(_wheels(shop))
    failed = shop.report()[NAMES[1]]
    assert (failed["exit_code"], failed["products"]) == (14, [])
    assert "pip found no wheel" in (shop.workshop.output / failed["log"]).read_text()
    assert "compile" in shop.log(NAMES[0]).splitlines()
    first = _wheels(shop)

    publish()
    done = shop.workshop.run(*shop.words())
    assert (done.returncode, shop.states()) == (0, ["up to date", "built", "up to date"]), done.stderr
    assert first.items() < _wheels(shop).items()
    for path in shop.workshop.output.glob("*.whl"):
        with WheelFile(path) as wheel:
            assert "torch/lib/libtorch_lms.so" in wheel.members
    assert leftovers(shop.workshop.output) == []


def test_a_row_is_built_anew_when_what_it_is_made_from_or_its_file_changes(shop: RowShop) -> None:
    words = shop.words("--name", NAMES[0])
    assert shop.workshop.run(*words).returncode == 0
    before = _wheels(shop)
    (damaged,) = shop.workshop.output.glob("*.whl")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert shop.workshop.run(*words).returncode == 0
    assert shop.states() == ["built"]
    assert _wheels(shop) == before

    source = shop.workshop.patches / "src/pytorch/torch/lms/__init__.py"
    synthetic.edit_file(source, lambda text: text + "VALUE = 1\n")
    shop.workshop.generate()
    assert shop.workshop.run(*words).returncode == 0
    assert shop.states() == ["built"]
    assert _wheels(shop).keys() == before.keys() and _wheels(shop) != before


def test_after_an_interruption_the_same_command_goes_on(shop: RowShop) -> None:
    assert shop.workshop.run(*shop.words("--name", NAMES[0])).returncode == 0
    with _begun(shop) as process:
        (tool,) = shop.wait_for_tools(1)
        other = shop.workshop.run(*shop.words())
        assert (other.returncode, "another run builds in" in other.stderr) == (BuildUnfinished.exit_code, True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted" in errors and "Traceback" not in errors
    assert not any(runs(process) for process in (tool, *(int(mark.name) for mark in shop.marks.iterdir())))
    assert shop.states() == ["up to date", "not run", "not run"]
    assert (leftovers(shop.workshop.output), len(_wheels(shop))) == ([], 1)
    done = shop.workshop.run(*shop.words())
    assert (done.returncode, shop.states()) == (0, ["up to date", "built", "built"]), done.stderr


def test_sudden_death_ends_the_tool_and_the_next_run_goes_on(shop: RowShop) -> None:
    with _begun(shop, "--name", NAMES[0]) as process:
        (tool,) = shop.wait_for_tools(1)
        process.kill()
        process.wait()
        compilers = [int(mark.name) for mark in shop.marks.iterdir()]
        wait_for(lambda: not any(runs(each) for each in (tool, *compilers)))
    shop.gate.touch()
    done = shop.workshop.run(*shop.words("--name", NAMES[0]))
    assert (done.returncode, shop.states()) == (0, ["built"]), done.stderr
    assert leftovers(shop.workshop.output) == []


def test_an_empty_address_builds_nothing_here(shop: RowShop) -> None:
    done = shop.workshop.run(*shop.words("--dask", ""))
    assert (done.returncode, _wheels(shop)) == (NoCluster.exit_code, {})
    assert "--dask has an empty address" in done.stderr


def test_a_terminal_shows_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("pytorch", "v2.13.0", "torch", f"3.{minor}", "linux-64", "wheel") for minor in (11, 12, 13)]
    followed = board.Board(3)
    for row in rows[:2]:
        followed.begin(row)
    outcomes = [
        Outcome(rows[0], "failed", 2.5, reason="why [not]\nmore"),
        Outcome(rows[1], "built", 61.0, products=(stamp.Product("torch.whl", ""),)),
        Outcome(rows[2], "not run"),
    ]
    followed.end(outcomes[0])
    assert "why [not]" in capsys.readouterr().err
    console = Console(width=120)
    with console.capture() as shown:
        console.print(followed.table())
    assert shown.get().split() == ["1", "of", "3", "rows,", "1", "failed", "building", rows[1].name, "0", "s"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    board.show(outcomes)
    said = re.sub("\x1b[^m]*m", "", capsys.readouterr().out)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines()]
    assert [rows[0].name, "failed", "2.5", "why [not]"] in lines
    assert [rows[1].name, "built", "61.0", "torch.whl"] in lines
    assert [rows[2].name, "not run", "0.0", ""] in lines


def test_a_conda_package_is_made_from_the_wheel_that_is_there(shop: RowShop) -> None:
    names = ("--name", NAMES[0], "--name", NAMES[0].replace("-wheel", "-conda"), "--no-test")
    words = ["build-all", "--output", shop.workshop.output, *names]
    done = shop.workshop.run(*words)
    assert done.returncode == 0, done.stderr
    wheel, *packages = (Path(name) for line in done.stdout.splitlines() for name in line.split("\t")[3].split())
    assert [package.name.split("-2")[0] for package in packages] == ["libtorch", "pytorch", "pytorch-cpu"]
    for package in packages:
        assert (wheel.suffix, package.suffix, package.parent.name) == (".whl", ".conda", SUBDIR)
        assert (shop.workshop.output / package).is_file()
    said = shop.log(NAMES[0].replace("-wheel", "-conda")).splitlines()
    assert "package" in said and "compile" not in said
    # Other options are another package; the wheel stays what it is.
    assert shop.workshop.run(*words, "--channel", "another").returncode == 0
    assert shop.states() == ["up to date", "built"]


def _dask(*words: str | Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dask", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, env=environment)


@contextmanager
def _cluster(
    shop: RowShop, workers: int, preload: Path = PRELOAD, **settings: str
) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """A scheduler's address, and the processes of it and its workers, which have the compiler that waits."""
    place = shop.workshop.folder / "scheduler.json"
    environment = {
        **os.environ,
        "CXX": str(shop.compiler),
        "LMSBUILD_CACHE": str(shop.workshop.cache),
        "LMS_TEST_PATCHES": str(shop.workshop.patches),
        "LMS_TEST_DRIVE": str(DRIVE),
        "LMS_TEST_RUNS": str(shop.workshop.folder / "runs"),
        **settings,
    }
    common = ("--scheduler-file", place, "--no-dashboard")
    started = [_dask("scheduler", *common, "--host", "127.0.0.1", "--port", "0", environment=environment)]
    try:
        wait_for(place.exists)
        words = ("worker", *common, "--nthreads", "1", "--no-nanny", "--preload", preload)
        folders = [shop.workshop.folder / f"worker-{number}" for number in range(workers)]
        started += [_dask(*words, "--local-directory", folder, environment=environment) for folder in folders]
        address = json.loads(place.read_text())["address"]
        yield address, started
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_lost_workers_row_is_built_by_another_and_a_failure_is_not_tried_again(shop: RowShop) -> None:
    shop.hide(PYTHONS[2])
    with _cluster(shop, 2) as (address, (_, worker, _)), _begun(shop, "--dask", address) as process:
        tools = shop.wait_for_tools(2)
        worker.send_signal(signal.SIGKILL)
        wait_for(lambda: sum(map(runs, tools)) == 1)  # the tool dies with its worker
        shop.gate.touch()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == RowsFailed.exit_code, errors
    assert shop.states() == ["built", "built", "failed"]
    begun = (shop.workshop.folder / "runs").read_text().split()
    assert sorted(begun.count(name) for name in NAMES[:2]) == [1, 2]
    assert begun.count(NAMES[2]) == 1
    assert len(_wheels(shop)) == 2
    assert shop.workshop.run(*shop.words("--name", NAMES[0], "--name", NAMES[1])).returncode == 0
    assert shop.states() == ["up to date", "up to date"]


def test_a_worker_without_the_tool_says_so_and_lives_on(shop: RowShop) -> None:
    """It may be somebody else's, with work of theirs."""
    preload = shop.workshop.folder / "without.py"
    preload.write_text("import sys\n\nsys.modules['lmsbuild'] = None\n")
    with _cluster(shop, 1, preload) as (address, (_, worker)):
        done = shop.workshop.run(*shop.words("--dask", address))
        assert worker.poll() is None
    assert done.returncode == RowsFailed.exit_code, done.stderr
    assert shop.states() == ["failed"] * 3
    assert f"1 worker at {address}" in done.stderr or f"{address} has no worker yet" in done.stderr
    for name in NAMES:
        assert shop.report()[name]["reason"].startswith("a worker cannot import lmsbuild, install it there")


@pytest.mark.release
def test_a_cluster_that_is_lost(shop: RowShop) -> None:
    with (
        _cluster(shop, 1, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as (address, (scheduler, worker)),
        _begun(shop, "--dask", address) as process,
    ):
        shop.wait_for_tools(1)
        worker.send_signal(signal.SIGKILL)
        wait_for(lambda: process.stderr and f"failed: {NAMES[0]}" in process.stderr.readline())
        scheduler.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == NoCluster.exit_code, errors
    assert "went away" in errors and "Traceback" not in errors, errors
    # The second row may have waited at that worker.
    assert (shop.states()[0], shop.states()[2]) == ("failed", "not run")
    assert "every worker that built it was lost" in shop.report()[NAMES[0]]["reason"]


def test_a_machine_with_another_tool_builds_nothing(shop: RowShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "patches_folder", lambda: shop.workshop.patches)
    (row,) = matrix.select(shop.workshop.patches, paths.recipes_folder(), matrix.Filters(names=[NAMES[0]]))
    made_from = {**stamp.inputs(row, ()), "patch": "another"}
    outcome = build_row.run(Job(row, shop.workshop.output, (), made_from))
    assert (outcome.state, outcome.exit_code) == ("failed", OtherTool.exit_code)
    assert "install the same one" in outcome.reason and _wheels(shop) == {}


def test_a_worker_that_does_not_share_the_output_is_noticed(tmp_path: Path) -> None:
    row = Row("pytorch", "v2.13.0", "torch", "3.12", "linux-64", "wheel")
    (tmp_path / "torch.whl").write_bytes(b"one")
    job = Job(row, tmp_path, (), {})
    for path, data in (("torch.whl", b"one"), ("torch.whl", b"other"), ("elsewhere.whl", b"one")):
        product = stamp.Product(path, hashlib.sha256(data).hexdigest())
        outcome = cluster.verified(Outcome(row, "built", host="far", products=(product,)), job)
        assert (outcome.state == "built") == ((path, data) == ("torch.whl", b"one"))
        assert outcome.state == "built" or "a folder that all machines share" in outcome.reason


def test_what_a_cluster_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    with pytest.raises(NoCluster, match="no Dask scheduler answers at tcp://127.0.0.1:9"):
        list(cluster.build([], "tcp://127.0.0.1:9"))
    with pytest.raises(NoCluster, match="no Dask scheduler answers at nonsense://x"):
        list(cluster.build([], "nonsense://x"))
    with pytest.raises(NoCluster, match="--dask has an empty address"):
        list(cluster.build([], ""))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(NoCluster, match=r"pip install 'lmsbuild\[dask\]'"):
        list(cluster.build([], "tcp://127.0.0.1:9"))
