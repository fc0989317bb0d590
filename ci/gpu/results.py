"""A part's results: measurements with units, ratios and aims, and the file that holds them.

A part is done unit by unit, and its file is written after each one: under another name that is then renamed, so it is
whole at any moment. A later run goes on where the file ends. A file says its own digest, so that one that was damaged on
its way from machine to machine is not gone on with. Results of a simulated device are in simulated-PART.json, and say
so inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from process import say

from lmsbuild.errors import Failure, OutOfTime, OutputNotWritable, WrongResult

GB = 1e9  # bytes, as bandwidths are given
MIB = 1 << 20
_VOLATILE = ("driver", "driver_cuda_version", "cpus", "host_memory_bytes", "python")


@dataclass(frozen=True)
class Aim:
    """What a ratio should be."""

    at_least: float | None = None
    at_most: float | None = None

    def reached_by(self, ratio: float) -> bool:
        return (self.at_least is None or ratio >= self.at_least) and (self.at_most is None or ratio <= self.at_most)

    def __str__(self) -> str:
        return f"at least {self.at_least}" if self.at_least is not None else f"at most {self.at_most}"


@dataclass(frozen=True)
class Measurement:
    """One number: the median of its samples."""

    name: str
    unit: str
    samples: tuple[float, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    baseline: str | None = None  # the name of the measurement that `ratio` is against
    ratio: float | None = None  # median / the baseline's median, of the same run
    aim: Aim | None = None

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    def against(self, other: Measurement, aim: Aim | None = None) -> Measurement:
        """The same measurement with its ratio to another one. Raises ValueError when the units differ."""
        if other.unit != self.unit:
            raise ValueError(f"{self.name} is in {self.unit}, {other.name} in {other.unit}")
        return Measurement(
            self.name, self.unit, self.samples, self.parameters, other.name, self.value / other.value, aim
        )

    def as_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": self.name, "value": self.value, "unit": self.unit}
        if self.parameters:
            entry["parameters"] = self.parameters
        if self.ratio is not None:
            entry |= {"baseline": self.baseline, "ratio": self.ratio}
        if self.aim is not None and self.ratio is not None:
            wanted = {key: value for key, value in asdict(self.aim).items() if value is not None}
            entry["aim"] = wanted | {"reached": self.aim.reached_by(self.ratio)}
        entry["samples"] = list(self.samples)
        return entry

    def __str__(self) -> str:
        text = f"{self.name}: {self.value:.4g} {self.unit}"
        if self.ratio is not None:
            text += f", {self.ratio:.3f} of {self.baseline}"
        if self.aim is not None and self.ratio is not None:
            text += f" ({self.aim}: {'reached' if self.aim.reached_by(self.ratio) else 'MISSED'})"
        return text


@dataclass(frozen=True)
class About:
    """Where results come from, the same for every part of a run."""

    command: str
    commit: str
    sources: str  # a digest of the graft's sources and of these scripts
    machine: dict[str, Any]
    scale: float
    simulated: bool

    def agrees_with(self, content: dict[str, Any]) -> bool:
        """Whether results of that file and of this run may stand side by side."""
        own = asdict(self)
        same = all(content.get(key) == own[key] for key in ("sources", "scale", "simulated"))
        return same and _lasting(content.get("machine")) == _lasting(self.machine)

    @property
    def volatile(self) -> dict[str, Any]:
        """What each result says for itself of the machine, since others beside it may differ there."""
        return {key: self.machine[key] for key in _VOLATILE if key in self.machine}


def _lasting(machine: Any) -> Any:
    """What results have to agree on: the machine without what may change under it, and the driver's major version."""
    if not isinstance(machine, dict):
        return None
    lasting = {key: value for key, value in machine.items() if key not in _VOLATILE}
    return lasting | {"driver": str(machine.get("driver")).partition(".")[0]}


class Part:
    """The results of one part by unit, written to its file after every unit. Not thread-safe.

    Results in the file that agree with this run are kept; the file of another device, framework or driver, or of other
    sources, is replaced.
    """

    def __init__(self, name: str, about: About, folder: Path, units: Sequence[str]) -> None:
        self.name = name
        self.path = folder / f"{'simulated-' if about.simulated else ''}{name}.json"
        self.results: dict[str, dict[str, Any]] = {}
        self._about = about
        self._units = units  # all that make the part complete
        self._failed: dict[str, dict[str, Any]] = {}
        self._failures: list[Failure] = []
        self._wanted: list[str] = []
        self._extra: dict[str, Any] = {}
        if self.path.exists():
            content = read(self.path)
            if content is None:
                say(f"  {self.path.name} is damaged, or was edited: replaced")
            elif about.agrees_with(content):
                self.results = {unit: entry for unit, entry in content["results"].items() if unit in units}
            else:
                say(f"  {self.path.name} is of other sources, or of another machine or scale: replaced")

    def left(self, units: Sequence[str] | None = None) -> list[str]:
        """Those of the units, by default of all, that have no result."""
        return [unit for unit in (self._units if units is None else units) if unit not in self.results]

    def each(self, out_of_time: Callable[[], bool], units: Sequence[str] | None = None) -> Iterator[str]:
        """The units to do: those that have no result yet, until the time is up."""
        self._wanted = list(self._units if units is None else units)
        kept = [unit for unit in self._wanted if unit in self.results]
        if kept:
            say(f"  kept from before: {', '.join(kept)}")
        for unit in self.left(self._wanted):
            if out_of_time():
                return
            yield unit

    def attempt(self, unit: str, work: Callable[[], dict[str, Any]]) -> None:
        """Does one unit, and keeps what it returns, or why it failed."""
        begin = time.monotonic()
        self._failed.pop(unit, None)
        try:
            entry = work()
            head = {"seconds": round(time.monotonic() - begin, 1), "machine": self._about.volatile}
            self.results[unit] = {**head, **entry}
        except Failure as error:
            say(f"  {unit}: {error}")
            self._failures.append(error)
            facts = error.facts if isinstance(error, WrongResult) else {}
            self._failed[unit] = {"error": str(error), "machine": self._about.volatile, **facts}
        self._write()

    def set(self, key: str, value: Any) -> None:
        """Sets what is about the part as a whole, and writes the file."""
        self._extra[key] = value
        self._write()

    def end(self) -> None:
        """Raises a failure like the first of a unit, or OutOfTime when some of those to do were not begun."""
        if self._failures:
            raise type(self._failures[0])(f"failed in {self.name}: {', '.join(self._failed)}")
        left = self.left(self._wanted)
        if left:
            raise OutOfTime(
                f"no time was left for {', '.join(left)} of {self.name}: run it again, and it goes on there"
            )

    def _write(self) -> None:
        content = {
            "part": self.name,
            "complete": not self.left(),
            **asdict(self._about),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **self._extra,
            "results": self.results,
            "failed": self._failed,
            "not_run": [unit for unit in self.left() if unit not in self._failed],
        }
        content = json.loads(json.dumps(content))  # as it will be read
        write_atomically(self.path, json.dumps({**content, "digest": _digest(content)}, indent=2) + "\n")


def _digest(content: dict[str, Any]) -> str:
    """Of all that a file of results holds but the digest itself."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def read(path: Path) -> dict[str, Any] | None:
    """What a part wrote into the file; None when it is not as it was written, or cannot be read."""
    try:
        content = json.loads(path.read_bytes())
        return content if content["digest"] == _digest(content) else None
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None


def take_over(earlier: Path, out: Path, names: Iterable[str]) -> None:
    """Copies the parts' results in the folder `earlier` of which there are none in `out`."""
    for name in (f"{prefix}{name}.json" for name in names for prefix in ("", "simulated-")):
        path = earlier / name
        if not path.exists() or (out / name).exists():
            continue
        if read(path) is None:
            say(f"from {earlier.name}: not {name}, which is damaged, or was edited")
        else:
            say(f"from {earlier.name}: {name}")
            write_atomically(out / name, path.read_text())


def make_writable(folder: Path) -> None:
    """Makes the folder when it is missing. Raises OutputNotWritable when no file can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputNotWritable(f"{folder} cannot be written ({error.strerror}): name another folder") from None


def write_atomically(path: Path, text: str) -> None:
    """Writes a file that is never seen incomplete. Raises OutputNotWritable when it cannot; what was there stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OutputNotWritable(
            f"{path} cannot be written ({error.strerror}): make room, or name another folder; with --from this one, "
            "it goes on where this one ends"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def measurements_json(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    return [measurement.as_json() for measurement in found]
