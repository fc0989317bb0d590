"""`lmsbuild tag check`: builds the graft of many tags, each against its official wheel, and tells how that went.

No wheel is written: the patch is applied, everything that it adds is compiled and linked, and every check of a build is
made. A tag that fails does not keep the others from being checked.
"""

from __future__ import annotations

import functools
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import report
from lmsbuild.catalogue.catalogue import Tag, number
from lmsbuild.errors import BadSources, Failure, StalePatch
from lmsbuild.fetch import download
from lmsbuild.graft import graft
from lmsbuild.patch import generate
from lmsbuild.tag import add_tag, release
from lmsbuild.trial import trial
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.target import Target, minor_of, python_of, target_for
from lmsbuild.wheel.wheel import WheelFile
from lmsbuild.workspace import workspace

_OF_ITS_TIME = ("trained", "records", "packages")  # what of a row does not follow from every wheel of the release
_OF_MAIN_PACKAGE = ("package", "cuda", "supports")  # what does not follow from the wheels of every package
_ROW = re.compile(r"^\| (\w+) (v[\d.]+) \|.*$", re.MULTILINE)
_HEAD = """# Tags

Every tag that a patch is made for. `lmsbuild tag check --all --table docs/tags.md` writes this file: it takes each tag's
official wheel (for the interpreter in bold), applies the patch to it, compiles and links what the patch adds, and makes
every check that a build makes. With names of tags instead of `--all` it writes their lines anew, and leaves the others.
"Trained with" is the Python with which the patched wheel trained a model when `lmsbuild tag add` read the release, within a
third of the memory that it needs, to the same numbers as without Large Model Support, to the bit. What the other columns
mean is said in `patches/catalogue/pytorch/tags.toml` and `patches/catalogue/tensorflow/tags.toml`. "For the CPU only" is said where the wheel that
was checked is not the CUDA build, as with `--package tensorflow-cpu`.

| tag | commit | CUDA | C++ ABI | standard | generation | interpreters | result | trained with |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Result:
    """How one tag's check went."""

    tag: Tag
    interpreter: str  # the ABI tag of the wheel that was taken
    failure: str  # the first line of what went wrong; empty: nothing
    cuda: bool  # whether the wheel that was taken has CUDA
    trained: bool
    seconds: float

    @property
    def outcome(self) -> str:
        if self.failure:
            return f"FAILS: {self.failure}"
        less = ", for the CPU only" if self.tag.cuda and not self.cuda else ""
        return f"builds{less}{', trained' if self.trained else ''}"


def check(tags: Sequence[Tag], patches: Path, cache: Path, smoke: bool) -> list[Result]:
    """Checks every tag in turn, and with `smoke` trains a model with each."""
    results = []
    # What of a framework's series is stale, which is the same for all of its tags.
    stale_series = functools.cache(lambda framework: generate.stale(generate.series(patches, framework)))
    with report.stages():
        for count, tag in enumerate(tags, start=1):
            report.stage(f"{tag.framework} {tag.name} ({count} of {len(tags)})")
            result = _check(tag, patches, cache, smoke, stale_series)
            report.note(f"{tag.name}: {result.outcome}, {result.seconds:.0f} s")
            results.append(result)
    return results


def table(results: Iterable[Result], before: str = "", platforms: str = "") -> str:
    """The results as a page for readers, with the lines of other tags that the page had `before`; `platforms` ends it."""
    lines = {(found[1], number(found[2])): f"{found[0]}\n" for found in _ROW.finditer(before)}
    lines |= {(result.tag.framework, result.tag.number): _line(result) for result in results}
    return _HEAD + "".join(lines[key] for key in sorted(lines)) + platforms


def _line(result: Result) -> str:
    tag = result.tag
    interpreters = ", ".join(f"**{abi}**" if abi == result.interpreter else abi for abi in tag.interpreters)
    cells = (
        f"{tag.framework} {tag.name}",
        f"`{tag.commit[:12]}`",
        tag.cuda or "none",
        tag.abi,
        tag.standard,
        tag.generation,
        interpreters,
        result.outcome.replace("|", "\\|"),
        f"Python {tag.trained}" if tag.trained else "",
    )
    return f"| {' | '.join(cells)} |\n"


def _check(tag: Tag, patches: Path, cache: Path, smoke: bool, stale_series: Callable[[str], list[Path]]) -> Result:
    begin = time.monotonic()
    interpreter = ""
    failure = ""
    with_cuda = False
    fetched: Path | None = None
    try:
        target = _target(tag)
        interpreter = target.interpreter
        known = set(cache.glob("*/*.whl"))
        base = download.fetch(tag, target, cache)
        fetched = base if base not in known else None
        begin = time.monotonic()
        with workspace(cache) as scratch:
            with_cuda = _check_row(tag, patches, base, stale_series)
            options = graft.Options(tag, target, patches, cache, scratch / "dist", base)
            if smoke:
                own = None if target.is_running else trial.find_interpreter(target.python)
                trial.run(graft.build(options), None, add_tag.MODEL, add_tag.STEPS, own)
            else:
                with InputFile(base) as file:
                    download.check_known(tag, file)
                    with WheelFile(file) as wheel:
                        graft.compile_graft(options, wheel, scratch)
    except Failure as error:
        failure = str(error).splitlines()[0]
        report.failure(str(error))
    finally:
        if fetched:
            shutil.rmtree(fetched.parent)  # there would be too many to keep
    return Result(tag, interpreter, failure, with_cuda, smoke and not failure, time.monotonic() - begin)


def _target(tag: Tag) -> Target:
    """The running interpreter where the tag has a wheel for it, else the newest that it has one for."""
    running = target_for(None)
    if running.interpreter in tag.interpreters:
        return running
    own = [name for name in tag.wheels if name.removesuffix(".whl").endswith(f"_{running.machine}")]
    pythons = {python for name in own if (python := python_of(name.split("-")[-2]))}
    return target_for(max(pythons, key=minor_of))


def _check_row(tag: Tag, patches: Path, base: Path, stale_series: Callable[[str], list[Path]]) -> bool:
    """Checks that the row and the committed patch are what the wheel and the sources give now; returns whether the wheel
    has CUDA. Raises BadSources or StalePatch. A wheel without CUDA is another build than the row describes.
    """
    with WheelFile(base) as wheel:
        read = release.read(patches, tag.framework, tag.name, tag.wheels, wheel)
        apart = {*_OF_ITS_TIME, *(() if read.cuda else _OF_MAIN_PACKAGE)}
        different = [key for key in vars(tag) if key not in apart and getattr(read, key) != getattr(tag, key)]
        if different:
            raise BadSources(
                f"tags.toml says {different[0]} = {getattr(tag, different[0])} of {tag.name}, its wheel "
                f"{getattr(read, different[0])}: read it anew with `lmsbuild tag add {tag.framework} {tag.name} --update`"
            )
        originals = {path: wheel.read(name) for path, name in graft.edited_members(patches, tag).items()}
    if stale := stale_series(tag.framework) + generate.stale(generate.hook(patches, tag, originals)):
        raise StalePatch(f"{stale[0]} is not what its sources generate: run `lmsbuild generate {tag.full_name}`")
    return bool(read.cuda)
