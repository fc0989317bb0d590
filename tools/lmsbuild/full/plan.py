"""What the framework's own build needs and does: its settings, what this machine lacks, and its commands for a reader."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import command, report
from lmsbuild.catalogue.catalogue import Tag, read_toml
from lmsbuild.errors import NoCompiler
from lmsbuild.graft import compilation
from lmsbuild.patch.patch import Patch, am_words, find_patch
from lmsbuild.patch.series import read_series
from lmsbuild.source import debian, source
from lmsbuild.wheel.target import Target, target_for

_GIB = 1 << 30

# Run by the interpreter that is to build, which may be much older than the one that runs the tool.
_LOOK = """
import importlib.util, json, os, sys, sysconfig
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
missing = [name for name in sys.argv[1:] if not found(name)]
if not found("wheel") and not found("setuptools.command.bdist_wheel"):
    missing.append("wheel")
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
print(json.dumps([missing, "" if os.path.exists(header) else header]))
"""


@dataclass(frozen=True)
class Variable:
    """A variable that the build gets unless the user sets it."""

    name: str
    value: str
    since: str = ""  # the first tag that needs it; empty: no bound
    until: str = ""  # the last one; empty: no bound


@dataclass(frozen=True)
class Command:
    """A command of the build, at the top of the tree."""

    words: tuple[str, ...]
    leaves: str = ""  # the folder that it leaves the wheel in; empty: it makes none
    since: str = ""  # the first tag that it is for; empty: no bound
    until: str = ""  # the last one; empty: no bound


@dataclass(frozen=True)
class Distribution:
    """What building a tree from Debian with the distribution's libraries needs besides."""

    packages: tuple[str, ...]
    first: tuple[str, ...]  # a command, at the top of the tree
    environment: Mapping[str, str]  # of the build, unless the user sets it


@dataclass(frozen=True)
class Recipe:
    """How a framework is built, as patches/catalogue/<framework>/full.toml says."""

    commands: tuple[Command, ...]  # in order
    programs: tuple[str, ...]
    pinned: Mapping[str, str]  # files of the tree that state the version which a program has to have, by program
    graft: bool  # whether the built wheel gets what a graft adds, since the build does not make it
    modules: tuple[str, ...]
    disk: int  # GiB
    memory: int  # GiB for each job
    reads: tuple[str, ...]
    environment: tuple[Variable, ...]
    debian: Distribution | None


@dataclass(frozen=True)
class Options:
    """One build, as it was asked for."""

    tag: Tag
    patches: Path
    cache: Path
    output: Path
    python: str | None = None  # a version; None: the running interpreter
    source: str | None = None  # a clone, a bundle or an address instead of upstream's repository, or source.DEBIAN
    jobs: int | None = None  # None: as many as fit


@dataclass(frozen=True)
class Plan:
    """One build, as it will run."""

    options: Options
    recipe: Recipe
    folder: Path  # of everything that the build leaves behind until it is done
    interpreter: str  # the program
    jobs: int
    because: str  # why that many
    environment: Mapping[str, str]  # what is set for the build, the user's own settings of it included

    @property
    def tree(self) -> Path:
        return self.folder / "source"

    @property
    def log(self) -> Path:
        return self.folder / "build.log"

    @property
    def patch(self) -> Patch:
        return find_patch(self.options.patches, self.options.tag)

    @property
    def commands(self) -> list[list[str]]:
        """The commands that build, in `tree`."""
        values = {"python": self.interpreter, "jobs": self.jobs, "folder": self.folder}
        values["memory"] = self.jobs * self.recipe.memory * 1024  # MiB, of all jobs
        first = [list(self.recipe.debian.first)] if self.debian and self.recipe.debian else []
        return [*first, *([word.format(**values) for word in command.words] for command in self._own)]

    @property
    def wheels(self) -> Path:
        """The folder that the build leaves the wheel in."""
        return self.tree / self._own[-1].leaves

    @property
    def _own(self) -> list[Command]:
        return [each for each in self.recipe.commands if self.options.tag.is_within(each.since, each.until)]

    @functools.cached_property
    def from_where(self) -> source.Options:
        asked = self.options
        return source.Options(asked.tag, asked.patches, asked.cache, self.tree, asked.source, whole=True)

    @functools.cached_property
    def debian(self) -> debian.SourcePackage | None:
        """What the tree is made of when Debian is the source. Raises NoSuchRevision or SourceIncomplete."""
        return source.debian_package(self.from_where) if self.options.source == source.DEBIAN else None


def read_recipe(patches: Path, framework: str) -> Recipe:
    table = read_toml(patches / "catalogue" / framework / "full.toml")
    return Recipe(
        commands=tuple(Command(**{**row, "words": tuple(row["words"])}) for row in table["command"]),
        programs=tuple(table["programs"]),
        pinned=dict(table.get("pinned", {})),
        graft=table.get("graft", False),
        modules=tuple(table["modules"]),
        disk=table["disk"],
        memory=table["memory"],
        reads=tuple(table["reads"]),
        environment=tuple(Variable(**row) for row in table["environment"]),
        debian=_distribution(**table["debian"]) if "debian" in table else None,
    )


def _distribution(packages: list[str], first: list[str], environment: dict[str, str]) -> Distribution:
    return Distribution(tuple(packages), tuple(first), environment)


def make(options: Options) -> Plan:
    """The plan for this machine. Raises WrongPlatform, NoSuchRevision or SourceIncomplete."""
    target = target_for(options.python)
    recipe = read_recipe(options.patches, options.tag.framework)
    if options.tag.interpreters and target.interpreter not in options.tag.interpreters:
        report.note(
            f"{options.tag.name} was released for {', '.join(options.tag.interpreters)}: its source may not build for "
            f"{target.interpreter}; --python names another interpreter"
        )
    jobs, because = _jobs(options.jobs, recipe.memory)
    interpreter = sys.executable if target.is_running else f"python{target.python}"
    made = Plan(
        options=options,
        recipe=recipe,
        folder=options.output.absolute() / f"build-{options.tag.framework}-{options.tag.name}-{target.interpreter}",
        interpreter=interpreter,
        jobs=jobs,
        because=because,
        environment=_environment(options, recipe, jobs, target, shutil.which(interpreter) or interpreter),
    )
    if options.source == source.DEBIAN:
        source.debian_package(made.from_where)
    return made


def missing(plan: Plan, *, begun: bool = False) -> list[str]:
    """What has to be there before the build can begin, with what mends it; nothing is written to look."""
    found = [
        f"{name}: not installed{_which_version(plan, name)}"
        for name in ("git", *plan.recipe.programs)
        if shutil.which(name) is None
    ]
    try:
        compilation.compiler()
    except NoCompiler as error:
        found.append(str(error))
    if plan.debian and plan.recipe.debian:
        found += _missing_of_debian(plan.recipe.debian, plan.debian)
    if shutil.which(plan.interpreter) is None:
        found.append(f"{plan.interpreter}: not on the PATH; install it, or name another version with --python")
    else:
        found += _missing_for_python(plan)
    if not begun:
        free = shutil.disk_usage(next(path for path in plan.folder.parents if path.is_dir())).free
        if free < plan.recipe.disk * _GIB:
            found.append(
                f"disk: {free / _GIB:.0f} GiB are free at {plan.folder.parent}, the build takes up to {plan.recipe.disk}: "
                "free some, or choose another folder with --output"
            )
    return found


def _which_version(plan: Plan, program: str) -> str:
    if program not in plan.recipe.pinned:
        return ""
    return (
        f"; {plan.recipe.pinned[program]} in the tree says which version, and {program}isk under that name fetches it"
    )


def lines(plan: Plan) -> list[str]:
    """The whole build as shell commands, which can be run by hand as they are."""
    tag, tree = plan.options.tag, plan.tree
    settings = [f"{name}={value}" for name, value in plan.environment.items()]
    output = plan.options.output.absolute()
    return [
        f"# {tag.framework} {tag.name} with Large Model Support, by the framework's own build; {plan.because}",
        shlex.join(["mkdir", "-p", str(plan.folder)]),
        _source_line(plan),
        shlex.join(map(str, [*am_words(tree), *(path.resolve() for path in plan.patch.files)])),
        shlex.join(["cd", str(tree)]),
        *(shlex.join(["env", *settings, *words]) for words in plan.commands),
        *_last_lines(plan, output),
    ]


def _source_line(plan: Plan) -> str:
    words = ["lmsbuild", "source", plan.options.tag.full_name, str(plan.tree)]
    if plan.options.source:
        at = source.DEBIAN if plan.debian else source.address(plan.from_where)
        words += ["--source", report.masked(at)]
    return shlex.join([*words, "--whole"])


def _last_lines(plan: Plan, output: Path) -> list[str]:
    wheels = f"{shlex.quote(str(plan.wheels.relative_to(plan.tree)))}/*.whl"
    if not plan.recipe.graft:
        return [f"cp {wheels} {shlex.quote(str(output))}/"]
    tag = plan.options.tag
    words = ["lmsbuild", tag.framework, tag.name, "--python", plan.options.python or target_for(None).python]
    return [f"{shlex.join([*words, '--output', str(output)])} --base {wheels}"]


def memory_available() -> int:
    """Bytes that programs may take now: what is free on the machine, or what the control group allows."""
    stated = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    bounds = [int(stated[1]) << 10] if stated else []
    own = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    for file in (f"{own}/memory.max", "memory.max", "memory/memory.limit_in_bytes"):
        try:
            bounds.append(int((Path("/sys/fs/cgroup") / file).read_text()))
        except (OSError, ValueError):
            continue
    return min(bounds, default=0)


def _jobs(asked: int | None, memory: int) -> tuple[int, str]:
    if asked is not None:
        return asked, f"jobs: {asked}, as asked"
    chosen = os.environ.get("MAX_JOBS", "")
    if chosen.isdecimal() and int(chosen) > 0:
        return int(chosen), f"jobs: {chosen}, as MAX_JOBS says"
    processors, free = len(os.sched_getaffinity(0)), memory_available()
    jobs = max(1, min(processors, free // (memory * _GIB)))
    return jobs, (
        f"jobs: {jobs}, for {processors} processors and {free / _GIB:.0f} GiB of free memory, of which a compiler takes "
        f"up to {memory}; --jobs says otherwise"
    )


def _environment(options: Options, recipe: Recipe, jobs: int, target: Target, interpreter: str) -> dict[str, str]:
    def is_read(name: str) -> bool:
        return any(name == known or (known.endswith("_") and name.startswith(known)) for known in recipe.reads)

    found = {name: value for name, value in os.environ.items() if is_read(name)}
    label = read_series(options.patches, options.tag).graft.label
    known = {
        "version": options.tag.version,
        "label": label,
        "patches": options.patches.resolve(),
        "python": target.python,
        "interpreter": interpreter,
    }
    for variable in recipe.environment:
        if options.tag.is_within(variable.since, variable.until):
            found.setdefault(variable.name, variable.value.format(**known))
    if options.source == source.DEBIAN and recipe.debian:
        for name, value in recipe.debian.environment.items():
            found.setdefault(name, value.format(**known))
    if shutil.which("ccache") and "ccache" not in found.get("CXX", ""):
        for language in ("C", "CXX"):
            found.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")
    found["MAX_JOBS"] = str(jobs)
    return dict(sorted(found.items()))


def _missing_of_debian(needed: Distribution, package: debian.SourcePackage) -> list[str]:
    suite = debian.suite()
    if suite != package.suite:
        here = suite or "another system"
        return [f"Debian {package.suite}: this machine runs {here}; take a container or a chroot of {package.suite}"]
    lacking = " ".join(debian.missing_packages(needed.packages))
    return [f"Debian's packages {lacking}: `apt-get install {lacking}`"] if lacking else []


def _missing_for_python(plan: Plan) -> list[str]:
    looked = command.run([plan.interpreter, "-c", _LOOK, *plan.recipe.modules])
    try:
        modules, header = json.loads(looked.text)
    except ValueError:
        return [f"{plan.interpreter}: does not run: {looked.error_text.strip()}"]
    found = []
    if modules:
        names = " ".join("pyyaml" if name == "yaml" else name for name in modules)
        found.append(f"Python modules {names}: `{plan.interpreter} -m pip install {names}`")
    if header:
        found.append(f"{header}: install the headers of this Python, such as python3-dev")
    return found
