"""ci/gpu/run.py: its arithmetic, its files, its failures, and all of it that a simulated device can do."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kept
from simulator import build as simulator_build

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "ci" / "gpu"
sys.path.insert(0, str(FOLDER))

import correctness
import first as first_minutes
import interpreter
import overlay
import plot
import process
import results
import run as script
import run_tensorflow
import runtime
import throughput
from oversubscription import PAGE, Traffic, limit_for
from session import Session

from lmsbuild import paths
from lmsbuild.catalogue.catalogue import tags
from lmsbuild.errors import (
    NoFramework,
    NoRuntime,
    OutOfTime,
    OutputNotWritable,
    ProgramFailed,
    UnknownTag,
    WrongResult,
    WrongVersion,
)

MIB = 1 << 20
ABOUT = results.About(
    command="python ci/gpu/run.py --out results",
    commit="0" * 40,
    sources="ab" * 8,
    machine={
        "gpu": "a card",
        "gpu_memory_bytes": 85 << 30,
        "compute_capability": "9.0",
        "driver_cuda_version": "13.0",
        "driver": "580.159",
        "torch": "2.11.0",
        "torch_commit": "c" * 40,
        "cuda": "13.0",
        "python": "3.12.3",
        "cpus": 16,
        "host_memory_bytes": 1 << 37,
    },
    scale=1.0,
    simulated=False,
)


# ---- arithmetic


def test_limits_are_whole_pages_that_are_never_more_than_asked() -> None:
    assert limit_for(100 * PAGE, 2) == 50 * PAGE
    assert limit_for(100 * PAGE + 12345, 4) == 25 * PAGE
    assert limit_for(100 * PAGE, 1.5) == 66 * PAGE
    for peak, factor in ((PAGE, 2), (0, 2), (PAGE, 0)):
        with pytest.raises(ValueError, match=str(peak)):
            limit_for(peak, factor)


def test_hidden_share() -> None:
    moved = Traffic(out_bytes=10e9, in_bytes=20e9, out_speed=50e9, in_speed=40e9)
    assert moved.serial_seconds == pytest.approx(0.7)
    assert moved.duplex_seconds == pytest.approx(0.5)
    assert moved.hidden_share(0.0) == 1
    assert moved.hidden_share(0.7) == pytest.approx(0)
    assert moved.hidden_share(0.175) == pytest.approx(0.75)
    assert moved.hidden_share(1.4) == pytest.approx(-1)
    assert Traffic(0, 0, 50e9, 40e9).hidden_share(0.1) is None


def test_traffic_of_a_step_is_what_the_counters_grew_by() -> None:
    before = {"out.bytes": 100, "in.bytes": 50, "stall_ns": 0, "faults": 1}
    after = {"out.bytes": 100 + 6e9, "in.bytes": 50 + 3e9, "stall_ns": 3e9, "faults": 1}
    after |= {"limit_bytes": 7, "device_bytes.peak": 7, "over_limit_bytes.peak": 0}
    found = throughput.traffic(before, after, 3, {"out": 20e9, "in": 10e9}, added=0.05)
    assert found["out_bytes_per_step"] == 2e9
    assert found["copy_seconds_per_step"] == {"one_after_the_other": 0.2, "both_ways_at_once": 0.1}
    assert found["hidden_share"] == pytest.approx(0.75)
    assert found["stall_seconds_per_step"] == 1
    assert found["faults_per_step"] == 0


def test_ratio_and_aim_are_of_the_medians() -> None:
    plain = results.Measurement("plain_out", "GB/s", (50.0, 52.0, 10.0))
    paged = results.Measurement("out", "GB/s", (47.5, 47.0, 90.0)).against(plain, results.Aim(at_least=0.95))
    entry = paged.as_json()
    assert (entry["value"], entry["ratio"], entry["baseline"]) == (47.5, 0.95, "plain_out")
    assert entry["aim"] == {"at_least": 0.95, "reached": True}
    assert "reached" in str(paged)
    missed = results.Measurement("out", "GB/s", (47.4,)).against(plain, results.Aim(at_least=0.95))
    assert missed.as_json()["aim"]["reached"] is False
    assert "MISSED" in str(missed)
    assert results.Aim(at_most=1.02).reached_by(1.02)
    assert not results.Aim(at_most=1.02).reached_by(1.021)
    with pytest.raises(ValueError, match="GB/s"):
        paged.against(results.Measurement("stock", "s/step", (1.0,)))


def test_scale_takes_from_the_batch_first() -> None:
    shape = throughput.Shape()
    assert shape.scaled(1) == shape
    assert (shape.scaled(2).batch, shape.scaled(2).width) == (16, shape.width)
    assert (shape.scaled(0.25).batch, shape.scaled(0.25).width) == (2, shape.width)
    small = shape.scaled(1 / 32)
    assert (small.batch, small.heads, small.width) == (1, 8, 1024)


def test_what_counts_as_equal() -> None:
    moved = {"out.bytes": 5, "in.bytes": 5}
    stock = {"losses": ["0x1p0", "0x1p1"], "digest": "aa"}
    assert correctness.outcome_of(stock, stock | {"statistics": moved}) == "equal"
    assert "step 2" in correctness.outcome_of(
        stock, {"losses": ["0x1p0", "0x1p2"], "digest": "aa", "statistics": moved}
    )
    assert "parameters" in correctness.outcome_of(stock, stock | {"digest": "bb", "statistics": moved})
    idle = {"out.bytes": 0, "in.bytes": 0}
    assert "nothing" in correctness.outcome_of(stock, stock | {"statistics": idle})


# ---- files


def never() -> bool:
    return False


def part_of(folder: Path, name: str = "mapping", about: results.About = ABOUT) -> results.Part:
    return results.Part(name, about, folder, ["one", "two"])


def written(part: results.Part) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(part.path.read_text())
    return found


def test_a_part_is_written_after_every_unit(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    states = []
    for unit in part.each(never):
        part.attempt(unit, lambda: {"measurements": []})
        states.append((list(written(part)["results"]), written(part)["not_run"], written(part)["complete"]))
    part.end()
    assert states == [(["one"], ["two"], False), (["one", "two"], [], True)]
    assert [path.name for path in tmp_path.iterdir()] == ["mapping.json"]
    found = written(part)
    assert (found["machine"], found["commit"], found["sources"]) == (ABOUT.machine, ABOUT.commit, ABOUT.sources)


def test_a_part_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = part_of(tmp_path)
    times = iter([False, True])
    for unit in first.each(lambda: next(times)):
        first.attempt(unit, lambda: {"value": 1})
    with pytest.raises(OutOfTime, match="no time was left for two of mapping"):
        first.end()
    second = part_of(tmp_path)
    done = []
    for unit in second.each(never):
        done.append(unit)
        second.attempt(unit, lambda: {"value": 2})
    second.end()
    assert done == ["two"]
    assert {unit: entry["value"] for unit, entry in written(second)["results"].items()} == {"one": 1, "two": 2}


def on(**machine: Any) -> dict[str, Any]:
    """What differs in results on a machine that differs in this."""
    return {"machine": ABOUT.machine | machine}


@pytest.mark.parametrize(
    "change",
    [
        {"sources": "cd" * 8},
        {"scale": 0.5},
        on(gpu="another"),
        on(gpu_memory_bytes=1 << 30),
        on(compute_capability="8.0"),
        on(driver="590.10"),
        on(driver=None),
        on(torch="2.12.0"),
        on(torch_commit="d" * 40),
        on(cuda="12.8"),
    ],
)
def test_results_that_do_not_belong_together_are_not_mixed(tmp_path: Path, change: dict[str, Any]) -> None:
    first = part_of(tmp_path)
    first.attempt("one", lambda: {"value": 1})
    assert part_of(tmp_path).left() == ["two"]
    assert part_of(tmp_path, about=dataclasses.replace(ABOUT, **change)).left() == ["one", "two"]


@pytest.mark.parametrize(
    "change",
    [{"driver": "580.65"}, {"host_memory_bytes": 1 << 36}, {"cpus": 8}, {"python": "3.12.9"}, {"driver": "580"}],
)
def test_results_of_much_the_same_machine_are_kept_and_each_says_its_own(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    first_part = part_of(tmp_path)
    first_part.attempt("one", lambda: {"value": 1})
    second = part_of(tmp_path, about=dataclasses.replace(ABOUT, **on(**change)))
    assert second.left() == ["two"]
    second.attempt("two", lambda: {"value": 2})
    found = written(second)["results"]
    volatile = {key: ABOUT.machine[key] for key in ("driver", "driver_cuda_version", "cpus", "host_memory_bytes")}
    volatile["python"] = ABOUT.machine["python"]
    assert (found["one"]["machine"], found["two"]["machine"]) == (volatile, volatile | change)


def test_earlier_results_are_taken_over_where_there_are_none(tmp_path: Path) -> None:
    earlier, out = tmp_path / "earlier", tmp_path / "out"
    for folder in (earlier, out):
        folder.mkdir()
    for name, folder, value in (("mapping", earlier, 1), ("bandwidth", earlier, 2), ("bandwidth", out, 3)):
        part_of(folder, name).attempt("one", lambda value=value: {"value": value})  # type: ignore[misc]
    (earlier / "notes.json").write_text("[]")
    for path in earlier.iterdir():
        path.chmod(0o444)
    earlier.chmod(0o555)
    results.take_over(earlier, out, script.PARTS)
    assert {path.name for path in out.iterdir()} == {"mapping.json", "bandwidth.json"}
    taken = part_of(out)
    assert taken.left() == ["two"]
    taken.attempt("two", lambda: {"value": 4})
    assert written(taken)["results"]["one"]["value"] == 1
    assert part_of(out, "bandwidth").results["one"]["value"] == 3
    assert json.loads((earlier / "mapping.json").read_text())["not_run"] == ["two"]
    earlier.chmod(0o755)


def test_a_unit_that_failed_is_told_and_done_again(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise WrongResult("bytes differ", {"checks": [7]})

    part = part_of(tmp_path)
    for unit in part.each(never):
        part.attempt(unit, fail if unit == "one" else lambda: {"value": 1})
    with pytest.raises(WrongResult, match="failed in mapping: one"):
        part.end()
    failed = written(part)["failed"]
    assert failed == {"one": {"error": "bytes differ", "machine": ABOUT.volatile, "checks": [7]}}
    assert written(part)["complete"] is False
    again = part_of(tmp_path)
    assert list(again.each(never)) == ["one"]
    again.attempt("one", lambda: {"value": 1})
    assert (written(again)["failed"], written(again)["complete"]) == ({}, True)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.attempt("one", lambda: {"value": 1})
    before = part.path.read_bytes()
    with pytest.raises(TypeError):
        part.attempt("two", lambda: {"value": object()})
    with pytest.raises(UnicodeEncodeError):
        results.write_atomically(part.path, "half\ud800")
    assert part.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mapping.json"]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "a bit of a number": lambda data: data.replace(b'"value": 1', b'"value": 3'),
    "no text": lambda data: b"\xff" + data,
    "no object": lambda data: b"[]",
    "no results": lambda data: json.dumps({**json.loads(data), "results": None}).encode(),
    "an entry is a number": lambda data: json.dumps({**json.loads(data), "results": {"one": 7}}).encode(),
    "nested": lambda data: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_results_are_told_and_measured_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    earlier, out = tmp_path / "earlier", tmp_path / "out"
    for folder in (earlier, out):
        folder.mkdir()
    part = part_of(earlier)
    part.attempt("one", lambda: {"value": 1})
    assert part_of(earlier).left() == ["two"]
    part.path.write_bytes(DAMAGES[damage](part.path.read_bytes()))
    results.take_over(earlier, out, script.PARTS)
    assert list(out.iterdir()) == []
    assert "not mapping.json, which is damaged" in capsys.readouterr().err
    assert plot.read(earlier, simulated=False) == {}
    again = part_of(earlier)
    assert "mapping.json is damaged, or was edited: replaced" in capsys.readouterr().err
    assert again.left() == ["one", "two"]
    again.attempt("one", lambda: {"value": 2})
    assert part_of(earlier).left() == ["two"]


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mapping.json").mkdir()
    part = part_of(tmp_path)
    with pytest.raises(OutputNotWritable, match=r"mapping\.json cannot be written \(Is a directory\)"):
        part.attempt("one", lambda: {"value": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["mapping.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of(tmp_path)
    part.attempt("one", lambda: {"value": 1})
    before = part.path.read_bytes()
    temporary = part.path.with_name(f".{part.path.name}.{os.getpid()}")
    temporary.symlink_to("/dev/full")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # which that device does not have
    with pytest.raises(OutputNotWritable, match=r"No space left on device\): make room"):
        part.attempt("two", lambda: {"value": 1})
    assert part.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mapping.json"]


def write_parts(folder: Path, about: results.About) -> None:
    """A folder of results, as the parts write them."""
    place = {"bytes": 64 * MIB, "chunk_bytes": 32 * MIB, "load": None}
    steps = [results.Measurement(name, "us", (5.0,), place) for name in ("create", "map", "unmap")]
    plain = results.Measurement("plain_out", "GB/s", (50.0,), {"block_bytes": 8 * MIB})
    paged = results.Measurement("out", "GB/s", (49.0,), {"block_bytes": 8 * MIB}).against(plain)
    stock = results.Measurement("stock", "s/step", (1.0,))

    def step(value: float, **facts: Any) -> dict[str, Any]:
        own = results.Measurement("own", "s/step", (value,)).against(stock)
        return {"step": own.as_json(), "stock": stock.as_json(), "stock_peak_bytes": 1000, **facts}

    entries: dict[str, dict[str, dict[str, Any]]] = {
        "mapping": {"64 MiB": {"measurements": results.measurements_json(steps)}},
        "bandwidth": {"blocks of 8 MiB": {"measurements": results.measurements_json([plain, paged])}},
        "throughput": {
            "lms 1x": step(1.0, oversubscription=1.0),
            "lms 2x": step(1.2, oversubscription=2.0),
            "checkpoint": step(1.3, peak_bytes=600),
        },
    }
    for name, units in entries.items():
        part = results.Part(name, about, folder, [*units, "one that was not run"])
        for unit, entry in units.items():
            part.attempt(unit, lambda entry=entry: entry)  # type: ignore[misc]


def test_the_picture_shows_what_the_files_hold(tmp_path: Path) -> None:
    assert plot.draw(tmp_path, simulated=False) is None
    write_parts(tmp_path, ABOUT)
    picture = plot.draw(tmp_path, simulated=False)
    assert picture == tmp_path / "results.svg"
    text = picture.read_text()
    assert text.rstrip().endswith("</svg>")
    bare = subprocess.run(
        [sys.executable, FOLDER / "plot.py", tmp_path], capture_output=True, text=True, check=True, env={"PATH": ""}
    )
    assert bare.stdout.split() == [str(picture)]
    for label in ("a card, torch 2.11.0", "unmap, 32 MiB chunks", "plain_out", "checkpoint", "oversubscription"):
        assert f"<!-- {label} -->" in text, label
    assert "SIMULATED" not in text


def test_simulated_results_stay_apart_and_say_so(tmp_path: Path) -> None:
    write_parts(tmp_path, dataclasses.replace(ABOUT, simulated=True))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"simulated-{part}.json" for part in ("mapping", "bandwidth", "throughput")}
    assert json.loads((tmp_path / "simulated-mapping.json").read_text())["simulated"] is True
    assert plot.draw(tmp_path, simulated=False) is None
    picture = plot.draw(tmp_path, simulated=True)
    assert picture == tmp_path / "simulated.svg"
    assert "SIMULATED: not a measurement" in picture.read_text()


def test_the_command_in_the_results_names_no_folder_of_this_machine() -> None:
    options = script.parse(
        ["--out", "/some/where/results", "--build", "/some/where/else", "--only", "throughput", "--scale", "0.5"]
    )
    assert script.command(options) == "python ci/gpu/run.py --out results --only throughput --scale 0.5"


# ---- training, with programs that only pretend


def session(programs: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Session:
    monkeypatch.setattr(process, "PROGRAMS", programs)
    return Session(
        python=Path(sys.executable),
        environment={**os.environ, **environment},
        models=Path("models.py"),
        simulated=False,
        scale=1.0,
        deadline=math.inf,
    )


SIDE = """
import json, os, sys
mode = sys.argv[1]
seconds = {"stock": 1.0, "lms:0": 1.01, "checkpoint": 1.3, "save_on_cpu": 2.0}.get(mode, 1.2)
if mode == os.environ.get("FAILS"):
    sys.exit("out of memory")
print(json.dumps({"ready": True}), flush=True)
steps = 0
for line in sys.stdin:
    verb, count = line.split()
    steps += int(count)
    statistics = {"out.bytes": steps * 5e9, "in.bytes": steps * 5e9, "stall_ns": 0, "faults": 0}
    statistics |= {"limit_bytes": 7, "device_bytes.peak": 7, "over_limit_bytes.peak": 0}
    said = {"seconds": seconds, "loss": 1.0, "peak": 1 << (30 if mode == "stock" else 29), "statistics": statistics}
    print(json.dumps(said if verb == "steps" else {"out": 50e9, "in": 50e9}), flush=True)
"""


def test_throughput_compares_with_stock_and_peers_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "side.py").write_text(SIDE)
    out = tmp_path / "results"
    out.mkdir()
    part = results.Part("throughput", ABOUT, out, throughput.units(simulated=False))
    throughput.run(session(tmp_path, monkeypatch, FAILS="checkpoint"), part)
    with pytest.raises(WrongResult, match="failed in throughput: checkpoint"):
        part.end()
    assert "out of memory" in written(part)["failed"]["checkpoint"]["error"]
    before = written(part)["results"]
    assert list(before) == ["lms 1x", "lms 1.5x", "lms 2x", "lms 4x", "save_on_cpu"]

    part = results.Part("throughput", ABOUT, out, throughput.units(simulated=False))
    throughput.run(session(tmp_path, monkeypatch), part)
    part.end()
    found = written(part)
    assert found["complete"] is True
    assert {name: found["results"][name] for name in before} == before
    assert found["results"]["lms 1x"]["step"]["aim"] == {"at_most": 1.02, "reached": True}
    assert found["results"]["save_on_cpu"]["fits_at"] == [1.0, 1.5, 2.0]
    lms = found["results"]["lms 2x"]
    assert (lms["step"]["ratio"], lms["stock"]["value"]) == (1.2, 1.0)
    # 5 GB out and 5 GB in take 0.2 s; the step is 0.2 s longer: nothing was hidden.
    assert lms["hidden_share"] == pytest.approx(0)
    peers = {(row["name"], row["baseline"]): row for row in found["against_peers"]}
    assert set(peers) == {(f"lms {f}x", peer) for f in ("1.5", "2") for peer in throughput.PEERS}
    assert peers["lms 2x", "checkpoint"]["ratio"] == pytest.approx(1.2 / 1.3)
    assert peers["lms 2x", "checkpoint"]["aim"]["reached"] is True


def test_what_was_predicted_stands_beside_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = json.loads((Path(throughput.__file__).parent / "predictions.json").read_text())
    gpu = next(iter(known))
    expected = known[gpu]["transformer"]["lms 2x"]["seconds"] / known[gpu]["transformer"]["stock"]["seconds"]
    (tmp_path / "side.py").write_text(SIDE)
    for name, scale, ratio in ((gpu, 1.0, expected), (gpu, 0.5, None), ("another", 1.0, None)):
        out = tmp_path / f"{name}-{scale}"
        out.mkdir()
        part = results.Part("throughput", ABOUT, out, ["lms 2x"])
        throughput.run(dataclasses.replace(session(tmp_path, monkeypatch), gpu=name, scale=scale), part)
        assert written(part)["results"]["lms 2x"]["predicted_ratio"] == ratio
        said = capsys.readouterr()
        assert ("predicted" in said.out + said.err) == (ratio is not None)
        if ratio is not None:
            assert f"predicted: {ratio:.3f} of stock; measured is {1.2 / ratio:.3f} of that" in said.out + said.err


def test_the_limits_are_of_what_the_stock_run_needs() -> None:
    words = {name: each.words(30 * PAGE) for name, each in throughput.CONTENDERS.items()}
    assert words["lms 1x"] == "lms:0"  # the default limit
    assert words["lms 1.5x"] == f"lms:{20 * PAGE}"
    assert words["checkpoint"] == "checkpoint"


TRAIN = """
import json, os, sys
limit = sys.argv[5] if len(sys.argv) > 5 else None
digest = "bb" if limit == os.environ.get("WRONG_AT", "never") else "aa"
moved = 0 if limit == "0" else 9
statistics = {"out.bytes": moved, "in.bytes": moved, "device_bytes.peak": 1, "over_limit_bytes.peak": 0}
statistics["allocated_bytes.peak"] = 400 << 20
print(json.dumps({"losses": ["0x1p0"], "digest": digest, "undeterministic": [], "statistics": statistics}))
"""


def test_training_is_compared_at_every_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train_case.py").write_text(TRAIN)
    part = results.Part("correctness", ABOUT, tmp_path, correctness.units(simulated=False))
    correctness.run(session(tmp_path, monkeypatch), part, ["lstm"])
    part.end()
    assert written(part)["complete"] is False  # the other cases are missing
    checks = written(part)["results"]["lstm"]["checks"]
    assert [(check["oversubscription"], check["policy"], check.get("limit_bytes", 0) >> 20) for check in checks] == [
        (1, "iteration", 0),
        (2, "iteration", 200),
        (4, "iteration", 100),
        (2, "lru", 200),
    ]
    assert {check["outcome"] for check in checks} == {"equal"}
    correctness.run(session(tmp_path, monkeypatch, WRONG_AT=str(100 << 20)), part, ["amp"])
    with pytest.raises(WrongResult, match="failed in correctness: amp"):
        part.end()
    failed = written(part)["failed"]["amp"]
    assert failed["error"] == "1 of 4 checks failed"
    assert [check["outcome"] for check in failed["checks"]].count("parameters or gradients differ") == 1


# ---- the first minutes, with programs that only pretend

CONTENTS = """
import json, os
statistics = {"out.bytes": 9, "in.bytes": 9, "device_bytes.peak": 1, "over_limit_bytes.peak": 0}
wrong = [7] if "CONTENTS_ARE_WRONG" in os.environ else []
print(json.dumps({"wrong": wrong, "tensor_bytes": 1 << 30, "statistics": statistics}))
"""

CALLS = """
import json, sys
steps = ["create", "map", "set_access", "unmap", "release"]
lengths = {"idle": 10, "busy": 20, "thread": 30, "control": 11, "both": 40}
calls = {where: {step: {"median": [us, us], "longest": [us, 9 * us]} for step in steps} for where, us in lengths.items()}
launches = {"alone": 4, "control": 5, "changes": 60}
launch = {where: {"median": [us], "longest": [7 * us]} for where, us in launches.items()}
rows = [{"handle_bytes": int(size), "calls": calls, "launch": launch, "still_busy": 1} for size in sys.argv[5:]]
flags = {"posix_file_handles": True}
print(json.dumps({"rows": rows, "memory": flags, "calls": {"cuMemMap": 5}, "refused": {"cuMemMap": 2}}))
"""

COPIES = """
import json, sys
seconds = {"plain_out": [1.0], "out": [1.25], "plain_in": [1.0], "in": [1.0]}
print(json.dumps({"bytes": 50e9, "seconds": seconds}))
"""


def first_contact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> results.Part:
    programs = {"contents": CONTENTS, "train_case": TRAIN, "calls": CALLS, "bandwidth": COPIES}
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    part = results.Part("first", ABOUT, tmp_path, first_minutes.units(simulated=False))
    first_minutes.run(session(tmp_path, monkeypatch, **environment), part)
    return part


def test_the_first_minutes_answer_in_a_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = first_contact(tmp_path, monkeypatch)
    part.end()
    assert written(part)["complete"] is True
    checks = written(part)["results"]["correct"]["checks"]
    assert [(check["case"], check["oversubscription"], check["outcome"]) for check in checks] == [
        ("contents", 2, "equal"),
        ("transformer", 1, "equal"),
        ("transformer", 2, "equal"),
    ]
    calls = written(part)["results"]["calls"]
    assert (calls["refused"], calls["memory"]["posix_file_handles"]) == ({"cuMemMap": 2}, True)
    summary = first_minutes.summary(part.results)
    assert summary[0] == "equal to the bit: contents at 2x, transformer at 1x, transformer at 2x"
    assert "  2 MiB: create 10.0 / 20.0 / 30.0 (11.0) / 40.0, map" in summary[2]
    assert summary[3] == (
        "  a launch: alone 4.0, while another thread changes mappings 60.0 (is busy without the driver 5.0); "
        "the longest 28, 420 (35)"
    )
    assert "  64 MiB: create" in summary[4]
    assert summary[6] == "  refused for a moment, in 5 calls: cuMemMap 2 times"
    assert summary[7:9] == [
        "8 MiB out: 40 GB/s, 0.800 of a plain copy",
        "8 MiB in: 50 GB/s, 1.000 of a plain copy",
    ]
    assert len(summary) == 13
    said = capsys.readouterr().err
    assert all(line in said for line in summary)


@pytest.mark.parametrize(
    ("environment", "outcome"),
    [
        ({"CONTENTS_ARE_WRONG": "1"}, "contents differ after operations [7]"),
        ({"WRONG_AT": str(200 << 20)}, "parameters or gradients differ"),
    ],
)
def test_the_first_minutes_go_on_after_a_wrong_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], outcome: str
) -> None:
    part = first_contact(tmp_path, monkeypatch, **environment)
    with pytest.raises(WrongResult, match="failed in first: correct"):
        part.end()
    assert outcome in [check["outcome"] for check in written(part)["failed"]["correct"]["checks"]]
    assert list(part.results) == ["calls", "copies"]
    assert not any("equal" in line for line in first_minutes.summary(part.results))


# ---- programs


def python(tmp_path: Path, code: str) -> list[str | Path]:
    program = tmp_path / "program.py"
    program.write_text(code)
    return [sys.executable, program]


def test_a_program_answers_on_its_last_line(tmp_path: Path) -> None:
    words = python(tmp_path, "print('a library says something')\nprint('{\"value\": 3}')\n")
    assert process.run(words, os.environ, 60) == {"value": 3}


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    words = python(tmp_path, "import sys\nprint('{}')\nsys.exit('no such device')\n")
    with pytest.raises(ProgramFailed, match=r"program.py ended with exit code 1\n    no such device"):
        process.run(words, os.environ, 60)
    with pytest.raises(ProgramFailed, match="no JSON object"):
        process.run(python(tmp_path, "print('fine')"), os.environ, 60)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = f"""
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
open({str(child)!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    begin = time.monotonic()
    with pytest.raises(ProgramFailed, match="does not answer in time"):
        process.run(python(tmp_path, code), os.environ, 3)
    assert time.monotonic() - begin < 60
    assert is_gone(int(child.read_text()))


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that is not waited for may stay as a zombie."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_a_conversation(tmp_path: Path) -> None:
    code = (
        'import sys\nfor line in sys.stdin:\n    print(\'{"said": "%s"}\' % line.strip(), flush=True)\n    int(line)\n'
    )
    with process.Conversation(python(tmp_path, code), os.environ) as program:
        assert program.ask("1", 60) == {"said": "1"}
        assert program.ask("x", 60) == {"said": "x"}
        with pytest.raises(ProgramFailed, match=r"(?s)ended with exit code 1.*invalid literal for int"):
            program.answer(60)


# ---- what the machine lacks


def torch_of(tmp_path: Path, version: str, commit: str) -> interpreter.Torch:
    facts = {"device": None}
    return interpreter.Torch(Path(sys.executable), version, commit, "13.0", tmp_path / "torch", True, facts)


def test_a_release_without_a_row_is_named_with_those_that_have_one(tmp_path: Path) -> None:
    patches = ROOT / "patches"
    with pytest.raises(UnknownTag, match=r"2\.99\.0\+cu130.*v2\.11\.0.*v2\.13\.0.*tags\.toml"):
        overlay.find_tag(patches, torch_of(tmp_path, "2.99.0+cu130", "0" * 40))
    with pytest.raises(WrongVersion, match="is built from 0000"):
        overlay.find_tag(patches, torch_of(tmp_path, "2.11.0+cu130", "0" * 40))


NAME_OF = """
import sys
from pathlib import Path

import overlay
from interpreter import Torch
from lmsbuild.patch import series
from runtime import Runtime

torch = Torch(Path("python"), "2.6.0", sys.argv[2], "12.4", Path("torch"), False, {})
tag = overlay.find_tag(Path(sys.argv[1]), torch)
graft = series.read_series(Path(sys.argv[1]), tag).graft
print(overlay.name_of(torch, tag, graft, Runtime(Path("include"), Path("library")), {}))
"""


def test_what_was_compiled_is_found_by_every_process() -> None:
    """The graft is compiled once on a machine whose minutes count, whatever order Python gives to the members of a set."""
    (tag,) = (tag for tag in tags(ROOT / "patches") if (tag.framework, tag.name) == ("pytorch", "v2.6.0"))
    words = [sys.executable, "-c", NAME_OF, ROOT / "patches", tag.commit]
    path = os.pathsep.join((str(FOLDER), str(ROOT / "tools")))
    names = {
        subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(4)
    }
    assert len(names) == 1
    assert names.pop().startswith("v2.6.0-")


def test_the_runtime_is_taken_from_where_it_is(tmp_path: Path) -> None:
    torch, toolkit = tmp_path / "site" / "torch", tmp_path / "toolkit"
    package = tmp_path / "site" / "nvidia" / "cu13"
    for file in (
        package / "include/cuda_runtime_api.h",
        package / "lib/libcudart.so.13",
        toolkit / "include/crt/host_defines.h",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = runtime.find(torch, "13.0", {"CUDA_HOME": str(toolkit), "PATH": ""})
    assert found == runtime.Runtime(package / "include", package / "lib/libcudart.so.13", (toolkit / "include",))
    with pytest.raises(NoRuntime, match=r"(?s)no libcudart.so.99.*CUDA_HOME.*nvidia/cu13/lib"):
        runtime.find(torch, "99.0", {"CUDA_HOME": str(toolkit), "PATH": ""})


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    with pytest.raises(NoFramework, match=r"(?s)install a CUDA wheel.*No module named 'torch'"):
        interpreter.look(Path(sys.executable), {"PATH": os.environ["PATH"], "PYTHONNOUSERSITE": "1"})
    assert script.main(["--out", str(tmp_path / "results")]) == NoFramework.exit_code
    assert not (tmp_path / "results").exists()


def interpreter_with(tmp_path: Path, **facts: Any) -> Path:
    """An interpreter that says of its torch what it is told to."""
    tag = next(tag for tag in tags(ROOT / "patches") if tag.name == "v2.11.0")
    said = {
        "version": "2.11.0+cu130",
        "commit": tag.commit,
        "cuda": "13.0",
        "folder": str(tmp_path),
        "new_strings": True,
    }
    said |= {"python": "3.12.3", "cpus": 2, "host_memory_bytes": 1 << 34, "device": {"gpu": "a card"}}
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(said | facts)}\nEND\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("facts", "compiler", "out", "code", "said"),
    [
        ({"cuda": None}, "", "results", 55, "is not built for CUDA: install a CUDA wheel"),
        ({"version": "1.6.0+cu101"}, "", "results", 4, "the installed torch is 1.6.0+cu101, and the patch is made for"),
        ({}, "no-such-compiler -x", "results", 10, "no C++ compiler found (looked for no-such-compiler)"),
        ({"device": None}, "", "results", 53, "sees no CUDA device"),
        ({}, "", "python/results", 13, "cannot be written (Not a directory): name another folder"),
        ({"cuda": "99.0"}, "", "results", 54, "no libcudart.so.99 on this machine"),
        ({}, "", "results", 16, "torch/__init__.py of the installed torch is missing"),
    ],
)
def test_what_the_machine_lacks_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    facts: dict[str, Any],
    compiler: str,
    out: str,
    code: int,
    said: str,
) -> None:
    toolkit = tmp_path / "toolkit"
    for file in ("include/cuda_runtime_api.h", "include/crt/host_defines.h", "lib64/libcudart.so.13"):
        (toolkit / file).parent.mkdir(parents=True, exist_ok=True)
        (toolkit / file).touch()
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.setenv("CXX", compiler)
    python = interpreter_with(tmp_path, **facts)
    words = ["--python", str(python), "--out", str(tmp_path / out), "--build", str(tmp_path / "build")]
    assert script.main(words) == code
    assert said in capsys.readouterr().err


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomli before Python 3.11")
def test_the_scripts_need_only_the_standard_library(tmp_path: Path) -> None:
    """A machine with a GPU has a framework; lmsbuild is in the checkout, and not installed."""

    def bare(*words: str | Path) -> subprocess.CompletedProcess[str]:
        """Python without any installed package."""
        words = (sys.executable, "-E", "-S", *words)
        return subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, check=False)

    assert "No module named 'packaging'" in bare("-c", "import packaging").stderr
    imported = bare("-c", "import run, run_tensorflow")
    assert imported.returncode == 0, imported.stderr
    python = interpreter_with(tmp_path, device=None)
    done = bare("run.py", "--python", python, "--out", tmp_path / "results")
    assert done.returncode == 53, done.stderr


@pytest.mark.parametrize("program", [script, run_tensorflow])
@pytest.mark.parametrize(
    "words",
    [[f"--{name}", value] for name in ("scale", "minutes") for value in ("0", "-1", "nan", "much")]
    + [["--scale", "inf"], ["--case", "nothing"]],
)
def test_wrong_usage(program: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--out", "x", *words], words):
        with pytest.raises(SystemExit) as ended:
            program.parse(given)
        assert ended.value.code == 2
        assert "invalid positive" not in capsys.readouterr().err


def test_a_case_of_a_part_that_is_left_out_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", "x", "--case", "odd", "--only", "mapping"]
    with pytest.raises(SystemExit) as ended:
        script.parse(words)
    assert ended.value.code == 2
    assert "--case is for the part correctness" in capsys.readouterr().err
    assert script.parse([*words, "--only", "correctness"]).case == ["odd"]
    assert script.parse(words[:4]).case == ["odd"]


def test_a_folder_without_headers_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.parse(["--out", "x", "--cuda-include", str(tmp_path)])
    assert ended.value.code == 2
    assert f"{tmp_path} has neither cuda_runtime_api.h nor crt/host_defines.h" in capsys.readouterr().err
    (tmp_path / "cuda_runtime_api.h").touch()
    assert script.parse(["--out", "x", "--cuda-include", str(tmp_path)]).cuda_include == [tmp_path]


@pytest.mark.parametrize("program", [script, run_tensorflow])
def test_what_is_no_interpreter_is_said(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", str(tmp_path / "results"), "--python"]
    for python in (tmp_path / "missing", tmp_path):
        assert program.main([*words, str(python)]) == NoFramework.exit_code
        assert f"{python} is no interpreter that can be run" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("program", [script, run_tensorflow])
def test_earlier_results_have_to_be_a_folder(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.parse(["--out", "x", "--from", str(tmp_path)]).earlier == tmp_path
    assert program.parse(["--out", "x"]).earlier is None
    with pytest.raises(SystemExit) as ended:
        program.parse(["--out", "x", "--from", str(tmp_path / "missing")])
    assert ended.value.code == 2
    assert f"there is no folder {tmp_path / 'missing'}" in capsys.readouterr().err


# ---- the simulated device


def call(python: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    words = ("--python", python, *words)
    return subprocess.run(
        [sys.executable, FOLDER / "run.py", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_without_a_gpu_it_says_so(cuda_python: Path, tmp_path: Path) -> None:
    done = call(cuda_python, "--out", tmp_path / "results")
    assert done.returncode == 53, done.stderr
    assert "sees no CUDA device" in done.stderr
    assert "--simulated" in done.stderr
    assert not (tmp_path / "results").exists()


def measured(
    simulated_cuda: Path, program: str, *arguments: object, base: dict[str, str] | None = None, **options: object
) -> dict[str, Any]:
    """What a program says that asks only the driver."""
    environment = simulator_build.environment(simulated_cuda, options=options, base=base)
    return process.run([sys.executable, process.PROGRAMS / program, *map(str, arguments)], environment, 120)


@pytest.mark.parametrize(
    ("fail", "has_handles"), [("", True), ("cuMemCreate:1:801", False), ("cuMemCreate:1:800", False)]
)
def test_memory_is_created_as_the_pager_creates_it(simulated_cuda: Path, fail: str, has_handles: bool) -> None:
    """With file handles where the device has them, and without where the driver refuses."""
    answer = measured(simulated_cuda, "mapping.py", 2, 4 * MIB, f"copies:{MIB}", **({"fail": fail} if fail else {}))
    assert answer["memory"] == {"posix_file_handles": has_handles}
    rows = [(row["chunk_bytes"] // MIB, row["load"], sorted(row["microseconds"])) for row in answer["rows"]]
    steps = sorted(["create", "map", "set_access", "unmap", "release"])
    assert rows == [(chunk, load, steps) for chunk in (2, 4) for load in (None, "copies")]


def test_other_errors_of_the_driver_end_the_program(simulated_cuda: Path) -> None:
    with pytest.raises(ProgramFailed, match=r"cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        measured(simulated_cuda, "mapping.py", 2, 4 * MIB, f"copies:{MIB}", fail="cuMemCreate:3:2")
    with pytest.raises(ProgramFailed, match=r"cuMemUnmap failed: CUDA_ERROR_NOT_READY \(600\)"):
        measured(simulated_cuda, "mapping.py", 2, 4 * MIB, f"copies:{MIB}", fail="cuMemUnmap:0:600")


def test_answers_after_which_the_pager_asks_again_are_counted(simulated_cuda: Path) -> None:
    words = ("calls.py", 2, 8 * MIB, f"copies:{2 * MIB}", f"copies:{MIB // 16}", 2 * MIB)
    answer = measured(simulated_cuda, *words)
    assert answer["refused"] == {}
    # Four handles; rounds: one to warm up, and two each idle, busy, from another thread, and from both.
    calls = {"cuMemMap": 44, "cuMemSetAccess": 44, "cuMemUnmap": 44}
    assert answer["calls"] == calls
    fail = "cuMemSetAccess:2:600,cuMemSetAccess:3:600,cuMemMap:20:600"
    answer = measured(simulated_cuda, *words, fail=fail)
    assert answer["refused"] == {"cuMemSetAccess": 2, "cuMemMap": 1}
    assert answer["calls"] == calls


@pytest.fixture(scope="module")
def build() -> Path:
    """The folder that keeps the graft and the simulator, which other tests use too, between the runs."""
    return kept.folder() / "simulated-gpu"


def test_a_simulated_part(cuda_python: Path, build: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    done = call(cuda_python, "--out", out, "--simulated", "--build", build, "--only", "mapping")
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "simulated-mapping.json").read_text())
    assert found["complete"]
    names = {row["name"] for entry in found["results"].values() for row in entry["measurements"]}
    assert names == {"create", "map", "set_access", "unmap", "release"}
    # A machine that comes with an empty folder for results goes on where another one ended.
    again = call(
        cuda_python, "--out", tmp_path / "again", "--from", out, "--simulated", "--build", build, "--only", "mapping"
    )
    assert again.returncode == 0, again.stderr
    assert "kept from before: 2 MiB, 32 MiB" in again.stderr
    assert json.loads((tmp_path / "again" / "simulated-mapping.json").read_text()) == found


@pytest.mark.release
def test_simulated(cuda_python: Path, build: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    done = call(cuda_python, "--out", out, "--simulated", "--build", build)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {
        "simulated-bandwidth.json",
        "simulated-correctness.json",
        "simulated-first.json",
        "simulated-mapping.json",
        "simulated.svg",
    }
    found = {
        name: json.loads((out / f"simulated-{name}.json").read_text()) for name in script.PARTS if name != "throughput"
    }
    assert all(part["complete"] for part in found.values())
    checks = found["correctness"]["results"]["contents"]["checks"]
    assert [(check["case"], check["outcome"]) for check in checks] == [("contents", "equal")] * 2
    assert all(check["out_bytes"] > check["limit_bytes"] for check in checks)
    measured = {
        name: {row["name"] for entry in found[name]["results"].values() for row in entry["measurements"]}
        for name in ("bandwidth", "mapping")
    }
    assert measured["bandwidth"] == {"out", "in", "plain_out", "plain_in"}
    assert measured["mapping"] == {"create", "map", "set_access", "unmap", "release"}
    in_minutes = found["first"]["results"]
    assert [check["outcome"] for check in in_minutes["correct"]["checks"]] == ["equal"]
    assert {row["name"] for row in in_minutes["copies"]["measurements"]} == {"out", "in", "plain_out", "plain_in"}
    situations = {(row["name"], row["parameters"]["situation"]) for row in in_minutes["calls"]["measurements"]}
    assert {where for name, where in situations if name == "unmap"} == {"idle", "busy", "thread", "control", "both"}
    assert {where for name, where in situations if name == "launch"} == {"alone", "control", "changes"}
    assert done.stderr.index("equal to the bit: contents at 2x") < done.stderr.index("correctness:")
    assert f"need a GPU: {', '.join([*correctness.MODELS, *correctness.SHAPES, *correctness.FEATURES])}" in done.stderr
    assert "throughput:\n  needs a GPU" in done.stderr


def test_contents_that_differ_are_noticed(
    cuda_python: Path, build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device whose streams do not wait for events."""
    monkeypatch.setenv("SIM_CUDA_DROP_WAITS", "1")
    out = tmp_path / "results"
    done = call(cuda_python, "--out", out, "--simulated", "--build", build, "--only", "correctness")
    assert done.returncode == 52, done.stderr
    assert "2 of 2 checks failed" in done.stderr
    checks = json.loads((out / "simulated-correctness.json").read_text())["failed"]["contents"]["checks"]
    assert all(check["outcome"].startswith("contents differ after operations") for check in checks)


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.release), signal.SIGKILL])
def test_interrupted(cuda_python: Path, build: Path, tmp_path: Path, how: signal.Signals) -> None:
    """What was done stays, and no program goes on alone, not even when the script has no chance to end it."""
    out = tmp_path / "results"
    words = [sys.executable, FOLDER / "run.py", "--python", cuda_python, "--out", out, "--simulated", "--build", build]
    with subprocess.Popen(
        [*words, "--only", "mapping", "--only", "correctness"], stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("correctness:"):
                break
        time.sleep(1)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert len(children) == 2
        running.send_signal(how)
        said = running.stderr.read()
    assert running.returncode == (130 if how == signal.SIGINT else -how), said
    assert ("interrupted" in said) == (how == signal.SIGINT)
    assert all(is_gone(int(child)) for child in children)
    assert {path.name for path in out.iterdir()} == {"simulated-mapping.json"}
    assert json.loads((out / "simulated-mapping.json").read_text())["complete"] is True


# ---- the simulated device, with operators


@pytest.mark.release  # on a machine that does nothing else
def test_the_load_is_kernels_where_there_are_kernels(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    """Here a kernel is the CPU's, so it runs where it does not touch what it must not."""
    words = [cuda_python, process.PROGRAMS / "mapping.py", 3, 4 * MIB, f"products:{MIB // 8}", f"adds:{MIB // 8}"]
    busy: dict[tuple[int, str], float] = {}  # the most of all tries: on a busy machine a load may be over early
    for _ in range(8):
        rows = process.run(list(map(str, words)), on_simulated_gpu, 120)["rows"]
        for row in rows:
            if row["load"]:
                key = row["chunk_bytes"] // MIB, row["load"]
                busy[key] = max(busy.get(key, 0), row["still_busy"]["release"])
        if min(busy.values()) > 0:
            break
    assert [(row["chunk_bytes"] // MIB, row["load"]) for row in rows] == [
        (chunk, load) for chunk in (2, 4) for load in (None, "products", "adds")
    ]
    assert busy.keys() == {(chunk, load) for chunk in (2, 4) for load in ("products", "adds")}
    assert min(busy.values()) > 0, busy
    words = [
        cuda_python,
        process.PROGRAMS / "calls.py",
        2,
        8 * MIB,
        f"products:{MIB // 8}",
        f"adds:{MIB // 16}",
        2 * MIB,
    ]
    for _ in range(8):
        (row,) = process.run(list(map(str, words)), on_simulated_gpu, 120)["rows"]
        if row["still_busy"] > 0:
            break
    assert row["still_busy"] > 0
    assert all(median > 0 for each in row["launch"].values() for median in each["median"])


@pytest.mark.parametrize(("case", "scale"), [("odd", 0.125), pytest.param("resnet", 0.0625, marks=pytest.mark.release)])
def test_odd_shapes_train_to_the_same_bits(
    cuda_python: Path, train_environment: dict[str, str], case: str, scale: float
) -> None:
    own = Session(
        python=cuda_python,
        environment=train_environment,
        models=paths.models_file(),
        simulated=False,
        scale=scale,
        deadline=math.inf,
    )
    checks = correctness.training(own, case, [(2, "iteration")])
    assert [(check.factor, check.outcome) for check in checks] == [(1, "equal"), (2, "equal")]
