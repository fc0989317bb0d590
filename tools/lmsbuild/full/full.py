"""The framework's own build on the patched tree, in a folder that lasts: what was done is not done again.

A stamp is left behind by each step, and states what the step made. A build that is resumed compares the stamps with
what is there, and begins at the first step for which they differ.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import command, git_command, report
from lmsbuild.errors import (
    AlreadyApplied,
    BuildFailed,
    BuildNotReady,
    BuildUnfinished,
    Failure,
    NoSpace,
    disk_failures,
)
from lmsbuild.full import plan
from lmsbuild.full.plan import Plan
from lmsbuild.graft import compilation, graft
from lmsbuild.lock import held
from lmsbuild.patch.patch import apply_to_checkout
from lmsbuild.patch.series import read_series
from lmsbuild.sbom import in_wheel, sbom
from lmsbuild.sbom.part import Part
from lmsbuild.source import source, submodules
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import file_sha256
from lmsbuild.workspace import publish, workspace

_TAIL = 1 << 20  # bytes of the log in which the reason is looked for
_REASON = re.compile(r"\b(?:fatal error|error|undefined reference)\b|\bError\b|FAILED|No space left", re.ASCII)
_SETTINGS = "settings.json"


@dataclass(frozen=True)
class _Step:
    name: str
    run: Callable[[Plan], str]  # returns what the stamp says
    holds: Callable[[Plan, str], bool]  # whether what a stamp says is true


def build(made: Plan, *, resume: bool) -> Path:
    """Builds the wheel and returns its file.

    Raises BuildNotReady, BuildUnfinished, BuildFailed, NoSpace, and what getting the source and patching it raise.
    """
    _check_ready(made)
    with report.stages(), disk_failures(made.folder), _held(made, resume):
        _check_settings(made)
        report.note(made.because)
        stamps = made.folder / "stamps"
        stamps.mkdir(exist_ok=True)
        for index, step in enumerate(_STEPS):
            stamp = stamps / step.name
            if stamp.exists() and step.holds(made, stamp.read_text()):
                report.note(f"{step.name}: done before")
                continue
            for later in _STEPS[index:]:
                (stamps / later.name).unlink(missing_ok=True)
            report.stage(step.name)
            written = stamps / f"{step.name}.new"
            written.write_text(step.run(made))
            written.replace(stamp)
        wheel = _publish(made, made.wheels / (stamps / _STEPS[-1].name).read_text().split()[0])
    report.note(f"{made.folder} is no longer needed; it makes the next build of this tag quicker")
    return wheel


def _publish(made: Plan, built: Path) -> Path:
    """Puts the wheel that was built, or what a graft makes of it, into the output folder, and returns its file."""
    options, target, sources = made.options, target_for(made.options.python), _sources(made)
    if made.recipe.graft:
        asked = graft.Options(options.tag, target, options.patches, options.cache, options.output, built, sources)
        return graft.build(asked)
    label = read_series(options.patches, options.tag).graft.label
    parts = [*sources, sbom.large_model_support(label, made.patch), *sbom.tools(compilation.compiler())]
    with workspace(options.output) as scratch:
        in_wheel.add(built, scratch / built.name, target, parts)
        publish(scratch / built.name, options.output / built.name)
    return options.output / built.name


def _sources(made: Plan) -> tuple[Part, ...]:
    """What the tree was made of, before the patch."""
    tag, debian = made.options.tag, made.debian
    if debian:
        packaging = (debian.packaging,) if debian.packaging else ()
        return tuple(sbom.archive(each.file, each.sha256) for each in (debian, *packaging))
    address = source.read_origin(made.options.patches, tag.framework).address
    return (sbom.checkout(tag.framework, tag.name, address, source.commit(tag, made.tree)),)


def _check_ready(made: Plan) -> None:
    lacking = plan.missing(made, begun=made.folder.is_dir())
    if lacking:
        listed = "".join(f"\n  {each}" for each in lacking)
        raise BuildNotReady(f"the framework's own build cannot begin on this machine:{listed}")


@contextmanager
def _held(made: Plan, resume: bool) -> Iterator[None]:
    """Makes or takes over the build folder, for this run alone."""
    folder = made.folder
    if (folder / _SETTINGS).exists() and not resume:
        raise BuildUnfinished(f"{folder} holds an earlier build: go on with it by --resume, or remove it")
    if folder.exists() and not folder.is_dir():
        raise BuildUnfinished(f"{folder} is in the way: remove it, or choose another folder with --output")
    with held(
        folder / "lock", BuildUnfinished(f"another run builds in {folder}: wait for it, or choose another --output")
    ):
        yield


def _check_settings(made: Plan) -> None:
    """Writes down what the build depends on, or raises BuildUnfinished when it was begun with something else."""
    settings = {
        "commit": made.options.tag.commit,
        "patch": made.patch.digest,
        "interpreter": made.interpreter,
        **({"source": made.debian.packaging.file} if made.debian and made.debian.packaging else {}),
        **{name: value for name, value in made.environment.items() if name != "MAX_JOBS"},
    }
    file = made.folder / _SETTINGS
    if not file.exists():
        written = file.with_suffix(".new")
        written.write_text(json.dumps(settings, indent=2))
        written.replace(file)
        return
    begun = json.loads(file.read_text())
    for name in sorted({*begun, *settings}):
        if begun.get(name) != settings.get(name):
            raise BuildUnfinished(
                f"{made.folder} was begun with {name} {begun.get(name, 'not set')}, now it is "
                f"{settings.get(name, 'not set')}: set it as it was, or remove the folder"
            )


def _get_source(made: Plan) -> str:
    shutil.rmtree(made.tree, ignore_errors=True)
    report.note(source.obtain(made.from_where))
    return source.commit(made.options.tag, made.tree)


def _source_holds(made: Plan, stamp: str) -> bool:
    if not stamp or not made.tree.is_dir():
        return False
    inside = git_command.run(made.tree, "merge-base", "--is-ancestor", stamp, "HEAD")
    return inside.code == 0 and not submodules.missing(made.tree)


def _apply(made: Plan) -> str:
    patch, tag = made.patch, made.options.tag
    git_command.run(made.tree, "am", "--abort")  # of a run that was killed
    git_command.run(made.tree, "reset", "--quiet", "--hard", f"refs/tags/{tag.name}")
    try:
        report.note(f"{apply_to_checkout(patch, made.tree, tag)} commits on top of {tag.name}")
    except AlreadyApplied as error:
        report.note(str(error))
    return patch.digest


def _patch_holds(made: Plan, stamp: str) -> bool:
    patch = made.patch
    files = {name: made.tree / name for name in patch.result}
    found = {name: git_command.blob_hash(file.read_bytes()) for name, file in files.items() if file.is_file()}
    return stamp == patch.digest and found == dict(patch.result)


def _check_programs(made: Plan) -> None:
    """Raises BuildNotReady when a program is of another version than the tree asks for."""
    for program, file in made.recipe.pinned.items():
        wanted = (made.tree / file).read_text().split()[0]
        said = command.run([program, "--version"], folder=made.tree).text
        if wanted not in said.split():
            raise BuildNotReady(
                f"{made.options.tag.name} is built with {program} {wanted}, by {file}, not with "
                f"{' '.join(said.split()) or 'none'}: install that version, or bazelisk under the name {program}, which "
                "fetches the one that a tree asks for; then go on with --resume"
            )


def _run_build(made: Plan) -> str:
    _check_programs(made)
    for older in made.wheels.glob("*.whl"):
        older.chmod(0o644)
        older.unlink()
    report.note(f"this takes hours; what it says is in {made.log}")
    with made.log.open("ab") as log, report.progress("build", None):
        # English, for the sake of _reason, but the user's character set.
        environment = {**git_command.unbound(os.environ), "LANGUAGE": "en", **made.environment}
        for words in made.commands:
            log.write(f"+ {shlex.join(words)}\n".encode())
            log.flush()
            code = command.run_logged(words, folder=made.tree, environment=environment, log=log)
            if code:
                raise _reason(made, words, code)
    wheels = list(made.wheels.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildFailed(f"{shlex.join(made.commands[-1])} ended well but left {len(wheels)} wheels; see {made.log}")
    return f"{wheels[0].name} {file_sha256(wheels[0])}"


def _build_holds(made: Plan, stamp: str) -> bool:
    name, _, digest = stamp.partition(" ")
    wheel = made.wheels / name
    return wheel.is_file() and file_sha256(wheel) == digest


def _reason(made: Plan, words: list[str], code: int) -> Failure:
    with made.log.open("rb") as log:
        log.seek(max(0, made.log.stat().st_size - _TAIL))
        said = log.read().decode(errors="replace").splitlines()
    # What earlier runs said is in the log too.
    begin = max((index for index, line in enumerate(said) if line.startswith("+ ")), default=0)
    said = said[begin + 1 :]
    if any("No space left on device" in line for line in said):
        return NoSpace(made.folder, f"the build says so in {made.log}", made.recipe.disk)
    if code < 0 or any("Killed signal" in line for line in said):
        return BuildFailed(
            f"the build, or a compiler in it, was killed, most likely for want of memory: go on with --resume and fewer "
            f"than {made.jobs} --jobs; see {made.log}"
        )
    errors = [line for line in said if _REASON.search(line) and "CalledProcessError" not in line]
    last = (errors or [line for line in said if line.strip()] or ["it said nothing"])[-1].strip()
    return BuildFailed(
        f"{shlex.join(words)} ended with {code}: {last}\n  All that it said is in {made.log}; once it is mended, go on "
        "with --resume"
    )


_STEPS = (
    _Step("source", _get_source, _source_holds),
    _Step("patch", _apply, _patch_holds),
    _Step("build", _run_build, _build_holds),
)
