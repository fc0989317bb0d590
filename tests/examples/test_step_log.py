"""What both frameworks' examples share, with a stand-in for the framework's LMS."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LIMITED = ["--device", "cpu", "--limit", "1G"]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


class StandIn:
    """Statistics that a test sets; peaks are reset to what is current."""

    def __init__(self) -> None:
        self.values = {
            "allocated_bytes.current": 0,
            "allocated_bytes.peak": 0,
            "resident_bytes.peak": 0,
            "limit_bytes": 100,
            "out.bytes": 0,
            "in.bytes": 0,
        }
        self.enabled: tuple[object, ...] = ()

    def stats(self, device: str) -> dict[str, int]:
        assert device == "cpu"
        return dict(self.values)

    def reset_peak_stats(self, device: str) -> None:
        assert device == "cpu"
        self.values["allocated_bytes.peak"] = self.values["allocated_bytes.current"]
        self.values["resident_bytes.peak"] = 0

    def use(self, peak: int, moved: int) -> None:
        self.values["allocated_bytes.current"] += 1
        self.values["allocated_bytes.peak"] = self.values["resident_bytes.peak"] = peak
        self.values["out.bytes"] += moved
        self.values["in.bytes"] += moved


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_says_what_its_step_did(tmp_path: Path) -> None:
    from lms_step_log import StepLog

    lms, path = StandIn(), tmp_path / "steps.csv"
    lms.use(peak=99, moved=1000)  # before the log begins
    log = StepLog(lms, "cpu", path)
    lms.use(peak=50, moved=10)
    log()
    lms.use(peak=40, moved=7)
    log("what", "a", "hook", "is", "given")
    log.start(model="next")
    lms.use(peak=5, moved=1)
    log.close()
    rows = read(path)
    assert [row["step"] for row in rows] == ["1", "2"]
    assert [row["allocated_bytes.current"] for row in rows] == ["2", "3"]
    assert [row["allocated_bytes.peak"] for row in rows] == ["50", "40"]
    assert [row["out.bytes"] for row in rows] == ["10", "7"]
    assert [row["limit_bytes"] for row in rows] == ["100", "100"]
    assert all(float(row["seconds"]) >= 0 for row in rows)


def test_labels_are_the_first_columns_and_steps_begin_again(tmp_path: Path) -> None:
    from lms_step_log import StepLog

    path = tmp_path / "steps.csv"
    log = StepLog(StandIn(), "cpu", path)
    for model in ("a", "b"):
        log.start(model=model)
        log()
    assert [(row["model"], row["step"]) for row in read(path)] == [("a", "1"), ("b", "1")]  # before it is closed
    log.close()
    assert path.read_text().startswith("model,step,seconds,")


def test_without_lms_there_is_time_alone() -> None:
    from lms_step_log import StepLog

    log = StepLog(None, "cpu")
    log()
    log.close()
    assert list(log.rows[0]) == ["step", "seconds"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("4096", 4096), ("64k", 65536), ("1.5M", 3 << 19), ("8G", 8 << 30), ("1T", 1 << 40)],
)
def test_sizes(text: str, expected: int) -> None:
    import many_model

    assert many_model.size(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "8X", "M", "8 GiB", "nan", "inf"])
def test_wrong_sizes(text: str) -> None:
    import many_model

    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        many_model.size(text)


def test_the_table_goes_on_after_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    import many_model

    lms = StandIn()

    def train(name: str, batch: int, log: object) -> float:
        for step in range(3):
            lms.use(peak=batch << 20, moved=0 if step else 1 << 30)  # the first step does not count
            log()  # type: ignore[operator]
            if batch == 4:
                raise MemoryError("too large")
        return 0.125

    options = SimpleNamespace(
        models=["a"], batch=[2, 4, 1], image_size=32, csv=None, averages=None, profile=None, warmup=1
    )
    assert many_model.run(options, lms, "cpu", train, MemoryError) == many_model.OUT_OF_MEMORY
    out = capsys.readouterr()
    assert "a, batch 4: too large" in out.err
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.out.splitlines()]
    assert rows[0] == list(many_model.COLUMNS)
    assert [(row[2], row[3], row[5], row[8]) for row in rows[2:]] == [
        ("2", "2.0", "0.0", "0.125"),
        ("4", "4.0", "2048.0", "out of memory"),
        ("1", "1.0", "0.0", "0.125"),
    ]


def test_averages_are_added_to_a_file_of_the_same_columns(tmp_path: Path) -> None:
    import many_model

    path, lms = tmp_path / "averages.csv", StandIn()
    options = SimpleNamespace(
        models=["a"], batch=[2], image_size=32, csv=None, averages=str(path), profile=None, warmup=2
    )

    def train(name: str, batch: int, log: object) -> float:
        for step in range(4):
            lms.use(peak=1, moved=1000 if step < 2 else step * 10)
            log()  # type: ignore[operator]
        return 0.5

    for _ in range(2):
        assert many_model.run(options, lms, "cpu", train, MemoryError) == 0
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["steps"], float(row["out.bytes"])) for row in rows] == [("a", "2", 25.0)] * 2
    with pytest.raises(SystemExit, match="has other columns"):
        many_model.run(options, None, "cpu", train, MemoryError)


def test_a_profiler_is_told_the_steps() -> None:
    import many_model

    said = []
    driver = SimpleNamespace(
        cuProfilerStart=lambda: said.append((len(log.rows), "start")),
        cuProfilerStop=lambda: said.append((len(log.rows), "stop")),
    )
    for first, last, expected in ((1, 1, [(0, "start"), (1, "stop")]), (2, 4, [(1, "start"), (4, "stop")])):
        said.clear()
        log = SimpleNamespace(rows=[])
        log = many_model._Log(None, "cpu", SimpleNamespace(profile=(first, last), csv=None), driver)
        for run in range(2):
            said.clear()
            if run:
                log.start()
            elif first == 1:
                said.append((0, "start"))  # when it was made
            for _ in range(5):
                log()
            assert said == expected, (first, last, run)


@pytest.mark.parametrize(("text", "expected"), [("4:9", (4, 9)), ("1:1", (1, 1))])
def test_steps(text: str, expected: tuple[int, int]) -> None:
    import many_model

    assert many_model.steps(text) == expected


@pytest.mark.parametrize("text", ["", "4", "9:4", "0:3", "a:b", "1:2:3"])
def test_wrong_steps(text: str) -> None:
    import many_model

    with pytest.raises(argparse.ArgumentTypeError, match="steps|above 0"):
        many_model.steps(text)


@pytest.mark.parametrize(
    ("words", "lms", "message"),
    [
        (["--no-lms", "--limit", "1G"], StandIn(), "--no-lms goes with neither"),
        (["--no-lms", "--csv", "x"], StandIn(), "--no-lms goes with neither"),
        (["--limit", "1G"], None, "install a wheel that lmsbuild made"),
        (["--device", "cpu"], StandIn(), "--device cpu needs --limit"),
        (["--limit", "a lot"], StandIn(), "is not a size"),
        (["--batch", "0"], StandIn(), "is not a number above 0"),
        (["--policy", "best"], StandIn(), "invalid choice"),
        (["--device", "gpu"], StandIn(), "--device gpu: the framework finds no GPU"),
        (["--device", "gpu", "--no-lms"], None, "--device gpu: the framework finds no GPU"),
        ([*LIMITED, "--store", "none"], StandIn(), "--store: none is not a folder that exists"),
        ([*LIMITED, "--store", __file__], StandIn(), "is not a folder that exists"),
        ([*LIMITED, "--csv", "none/a.csv"], StandIn(), "--csv: none/a.csv cannot be written"),
        ([*LIMITED, "--csv", "."], StandIn(), "--csv: . cannot be written"),
        ([*LIMITED, "--averages", "none/a.csv"], StandIn(), "--averages: none/a.csv cannot be written"),
        ([*LIMITED, "--profile", "2:3"], StandIn(), "--profile is about a GPU"),
        ([*LIMITED, "--profile", "3"], StandIn(), "are no steps"),
        ([*LIMITED, "--warmup", "0"], StandIn(), "is not a number above 0"),
    ],
)
def test_options_that_contradict_each_other_or_what_there_is(
    words: list[str], lms: StandIn | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import many_model

    parser = many_model.parser("Trains.", ("cpu", "gpu"))
    with pytest.raises(SystemExit, match="2"):
        many_model.check(parser, parser.parse_args(["model", *words]), lms, gpu=False)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--csv", "new.csv"], ["--csv", "old.csv"], ["--store", "."]])
def test_options_that_are_right(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import many_model

    monkeypatch.chdir(tmp_path)
    Path("old.csv").write_text("kept")
    parser = many_model.parser("Trains.", ("cpu", "gpu"))
    many_model.check(parser, parser.parse_args(["model", *LIMITED, *words]), StandIn(), gpu=False)
    many_model.check(parser, parser.parse_args(["model", "--device", "gpu", *words]), StandIn(), gpu=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.csv": "kept"}
