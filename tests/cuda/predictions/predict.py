"""Predicts what training steps take on machines that are not at hand, and draws where the time goes.

    python tests/cuda/predictions/predict.py --python PYTHON [--machine NAME]... [--model NAME | --programs]...
        [--out FOLDER]

PYTHON has a CUDA build of torch with LMS; the Python that runs this has lmsbuild. Each contender trains on the simulated
CUDA, where nothing is computed and a virtual clock says when every kernel, copy and call would end (simulator/clock.h);
published policies are played with a tape of the same training (literature.py). The results are predictions. Prints tables;
FOLDER gets `predictions.json`, and for each machine and model a picture of steps at 2x.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from operators import build
from predictions import literature, machine, timeline
from predictions.machine import HANDLES, Machine
from predictions.replay import DoesNotFit, Replay
from predictions.tape import Tape
from predictions.tape import read as read_tape

MODELS = ("transformer", "convnet", "lstm", "unet3d")  # of step_time.py
PROGRAMS = (  # of programs.py
    *("recomputed", "foreach", "fused", "scaled", "averaged", "in_backward", "streams", "loader", "packed", "penalty"),
    *("functions", "graph", "pipeline", "data_parallel", "processes"),
)
GPUS = {"pipeline": 2, "data_parallel": 2}  # of a process; 1 otherwise
PROCESSES = {"processes": 2}  # 1 otherwise
UNTAPED = ("graph", *GPUS, *PROCESSES)  # a tape has neither replays nor a second GPU
UNHOOKED = ("functions",)  # torch.func allows no hooks for saved tensors
FACTORS = (1.0, 1.5, 2.0, 4.0)
COMPARED = (1.5, 2.0)  # with calls that cost nothing, and with the literature
PEERS = ("save_on_cpu", "checkpoint")
DRAWN = ("stock", "lms 2x", *PEERS)
MEASURED = 4  # steps of a tape


@dataclass(frozen=True)
class Predicted:
    """One contender. Seconds and bytes are of one step, the mean of those that were measured."""

    name: str
    seconds: float
    peak: int
    moved: dict[str, float]  # by lane
    busy: dict[str, float] = field(default_factory=dict)  # seconds by lane
    events: list[timeline.Event] = field(default_factory=list)  # of the last step

    def bound(self, on: Machine, stock: Predicted) -> float:
        """No schedule that moves these bytes takes less: computing, or copying one way, whichever takes longer."""
        return max(stock.seconds, *(self.moved[way] / on[f"link.{way}"] for way in ("in", "out")))


class Predictor:
    """Runs step_time.py with an interpreter, in the environment in which it computes on the simulated CUDA."""

    def __init__(self, python: Path, environment: Mapping[str, str]) -> None:
        self._python = python
        turns = str(Path(environment["LD_PRELOAD"].split()[0]).with_name("libturns.so"))
        self._base = {
            **environment,
            "LD_PRELOAD": f"{turns} {environment['LD_PRELOAD']}",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "SIM_CUDA_MODE": "timed",
            "SIM_CUDA_WORK": "0",
        }

    def command(self, program: str) -> list[str]:
        """That runs a program of this folder."""
        return [str(self._python), "-W", "ignore", str(HERE / program)]

    def environment(self, on: Machine, folder: Path, free: tuple[str, ...] = (), gpus: int = 1) -> dict[str, str]:
        """In which a program runs on the machine, whose file goes into the folder. `free`: calls that take no time."""
        file = folder / "machine.toml"
        file.write_text(on.text_without(free))
        return {
            **self._base,
            "SIM_CUDA_DEVICES": str(gpus),
            "SIM_CUDA_MACHINE": str(file),
            "SIM_CUDA_MEMORY": str(int(on["memory.bytes"])),
        }

    def predict(
        self, on: Machine, model: str, name: str, mode: str, free: tuple[str, ...] = (), tape: Path | None = None
    ) -> Predicted:
        """`free`: calls that take no time. `tape`: where what the program does goes."""
        with TemporaryDirectory() as folder:
            environment = self.environment(on, Path(folder), free, GPUS.get(model, 1))
            words = [*self.command("step_time.py"), model, mode]
            ranks = range(PROCESSES.get(model, 1))
            tables = [Path(folder) / f"timeline-{rank}.csv" for rank in ranks]
            more = [str(tape)] if tape is not None else []

            def run(rank: int) -> subprocess.CompletedProcess[str]:
                own = {"LMS_TEST_MEETING": str(Path(folder) / "meeting"), "LMS_TEST_RANK": str(rank)}
                command = [*words, str(tables[rank]), *more]
                return subprocess.run(command, capture_output=True, text=True, env={**environment, **own}, check=False)

            with ThreadPoolExecutor(len(ranks)) as pool:
                outcomes = list(pool.map(run, ranks))
            if failed := [done.stderr for done in outcomes if done.returncode != 0]:
                raise RuntimeError("\n".join((f"{on.name}, {model}, {name}:", *failed)))
            said = json.loads(outcomes[0].stdout.splitlines()[-1])
            moments = said["moments_ns"]
            events = timeline.read(tables[0], moments[-2])
        steps = len(moments) - 1
        return Predicted(
            name=name,
            seconds=(moments[-1] - moments[0]) / steps / 1e9,
            peak=said["peak_bytes"],
            moved={lane: timeline.moved_bytes(events, lane) / steps for lane in ("out", "in")},
            busy={lane: seconds / steps for lane, seconds in timeline.busy_seconds(events).items()},
            events=[event for event in events if event.end > 0],
        )

    def compare(self, on: Machine, model: str) -> dict[str, Predicted]:
        """By name. Policies that cannot train in so little memory are left out, and what there is no tape of."""
        tape = None
        if model in UNTAPED:
            stock = self.predict(on, model, "stock", "stock")
        else:
            with TemporaryDirectory() as folder:
                file = Path(folder) / "tape"
                stock = self.predict(on, model, "stock", "stock", tape=file)
                with file.open() as lines:
                    tape = read_tape(lines)
        found = [stock]
        for factor in FACTORS:
            limit = 0 if factor == 1 else int(stock.peak / factor)
            found.append(self.predict(on, model, f"lms {factor:g}x", f"lms:{limit}"))
            if factor in COMPARED:
                found.append(self.predict(on, model, f"lms {factor:g}x, free handles", f"lms:{limit}", free=HANDLES))
                found += published(on, tape, limit, f"{factor:g}x") if tape is not None else []
        peers = {"save_on_cpu": model not in UNHOOKED, "checkpoint": model in MODELS}  # programs say what is recomputed
        found += [self.predict(on, model, peer, peer) for peer in PEERS if peers[peer]]
        return {one.name: one for one in found}


def published(on: Machine, tape: Tape, limit: int, label: str) -> list[Predicted]:
    found = []
    for name, policy in literature.POLICIES.items():
        try:
            outcome = Replay(tape, limit, on.link).play(policy(tape, limit, on.link), MEASURED)
        except DoesNotFit:
            continue
        moved = {"out": outcome.out_bytes, "in": outcome.in_bytes}
        found.append(Predicted(f"{name} {label}", outcome.seconds, outcome.most_bytes, moved))
    return found


def details(on: Machine, model: str, found: dict[str, Predicted]) -> str:
    """Where the time goes."""
    stock = found["stock"]
    rows = [
        f"### {model} on {on.device}, {stock.peak / 1e9:.1f} GB",
        "",
        "| | ms/step | of stock | bound | peak, GB | out + in, GB | kernels | in | out | PyTorch | calls | waits | LMS's thread |",
        "| --- |" + " ---: |" * 12,
    ]
    for one in found.values():
        if one.busy:
            cells = [
                f"{1e3 * one.seconds:.0f}",
                f"{one.seconds / stock.seconds:.2f}",
                f"{one.bound(on, stock) / stock.seconds:.2f}",
                f"{one.peak / 1e9:.1f}",
                " + ".join(f"{nbytes / 1e9:.1f}" for nbytes in one.moved.values()),
                *(f"{1e3 * one.busy[lane]:.0f}" for lane in timeline.LANES),
            ]
            rows.append(f"| {one.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def comparison(on: Machine, models: Mapping[str, dict[str, Predicted]]) -> str:
    """Everything as a multiple of the step without LMS."""
    policies = tuple(literature.POLICIES)
    names = ("bound", "LMS", "free handles", *policies, *PEERS)
    rows = [f"| {on.device} | stock, ms | " + " | ".join(names) + " |", "| --- |" + " ---: |" * (1 + len(names))]
    for model, found in models.items():
        stock = found["stock"]
        for factor in COMPARED:
            label = f"{factor:g}x"
            lms = found[f"lms {label}"]
            ratios = [lms.bound(on, stock) / stock.seconds, lms.seconds / stock.seconds]
            ratios.append(found[f"lms {label}, free handles"].seconds / stock.seconds)
            cells = [f"{ratio:.2f}" for ratio in ratios]
            for name in (*(f"{policy} {label}" for policy in policies), *PEERS):
                fits = name in found and found[name].peak <= stock.peak / factor * 1.01
                cells.append(f"{found[name].seconds / stock.seconds:.2f}" if fits else "–")
            rows.append(f"| {model}, {label} | {1e3 * stock.seconds:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def overview(on: Machine, models: Mapping[str, dict[str, Predicted]]) -> str:
    """LMS at every limit, and what no schedule undercuts, as multiples of the step without LMS."""
    rows = [f"| {on.device} | GB | stock, ms | " + " | ".join(f"{factor:g}x" for factor in FACTORS) + " |"]
    rows.append("| --- |" + " ---: |" * (2 + len(FACTORS)))
    for model, found in models.items():
        stock = found["stock"]
        cells = [f"{stock.peak / 1e9:.1f}", f"{1e3 * stock.seconds:.0f}"]
        for factor in FACTORS:
            lms = found[f"lms {factor:g}x"]
            past = "" if lms.peak <= stock.peak / factor * 1.01 or factor == 1 else f", {lms.peak / stock.peak:.0%}"
            cells.append(f"{lms.seconds / stock.seconds:.2f} ({lms.bound(on, stock) / stock.seconds:.2f}{past})")
        rows.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def as_text(results: Mapping[Machine, Mapping[str, dict[str, Predicted]]]) -> str:
    """JSON with a contender on a line, by device and model."""
    devices = []
    for on, models in results.items():
        shown = []
        for model, found in models.items():
            lines = []
            for name, one in found.items():
                said = {"seconds": one.seconds, "bound_seconds": one.bound(on, found["stock"])}
                rounded = {key: round(value, 6) for key, value in said.items()}
                lines.append(f"   {json.dumps(name)}: {json.dumps({**rounded, 'peak_bytes': one.peak})}")
            shown.append(f"  {json.dumps(model)}: {{\n" + ",\n".join(lines) + "\n  }")
        devices.append(f" {json.dumps(on.device)}: {{\n" + ",\n".join(shown) + "\n }")
    return "{\n" + ",\n".join(devices) + "\n}\n"


def predict(
    predictor: Predictor, machines: Iterable[str], models: Iterable[str], out: Path | None
) -> dict[Machine, dict[str, dict[str, Predicted]]]:
    results: dict[Machine, dict[str, dict[str, Predicted]]] = {}
    for on in map(Machine, machines):
        for model in models:
            found = predictor.compare(on, model)
            print(details(on, model, found), flush=True)
            results.setdefault(on, {})[model] = found
            if out is not None:
                drawn = [(one.name, one.events, one.seconds) for one in found.values() if one.name in DRAWN]
                title = f"A training step, predicted: {model} on {on.device}"
                timeline.draw(drawn, title, out / f"{on.name}-{model}.svg")
        print(overview(on, results[on]), comparison(on, results[on]), sep="\n", flush=True)
    return results


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Of a script that predicts for the machines that `--machine` names; where it names none, for all."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--machine", action="append", choices=machine.NAMES)
    return parser


def script_predictor(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Predictor:
    """With the script's --python; ends with the parser's error where that cannot be used."""
    try:
        return Predictor(*build.for_script(arguments.python))
    except build.UnusableError as error:
        parser.error(str(error))


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--model", action="append", choices=(*MODELS, *PROGRAMS), default=[])
    parser.add_argument("--programs", action="store_true", help="all that are no models")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.out is not None:
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out: {arguments.out} cannot be made a folder: {error.strerror}")
    predictor = script_predictor(parser, arguments)
    models = [*arguments.model, *(PROGRAMS if arguments.programs else ())] or MODELS
    results = predict(predictor, arguments.machine or machine.NAMES, models, arguments.out)
    if arguments.out is not None:
        (arguments.out / "predictions.json").write_text(as_text(results))


if __name__ == "__main__":
    main()
