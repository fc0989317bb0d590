"""Every way in which the tool can fail: one class per failure, with its own exit code.

A message says what is wrong, with the names and numbers of this case, and what to do next. Exit codes are part of the
interface: scripts may rely on them, so a code is never used again for another failure. 2 is Click's, for wrong usage.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_WRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT),  # a file where a folder has to be, and the like
)


class Failure(Exception):
    """A failure that the reader can do something about; anything else is a bug and shows its traceback."""

    exit_code: ClassVar[int] = 1


class UnknownFramework(Failure):
    exit_code = 3


class UnknownTag(Failure):
    exit_code = 4


class WrongVersion(Failure):
    """The base wheel is of another package or version than the tag."""

    exit_code = 5


class WrongPlatform(Failure):
    """The base wheel is for another operating system, machine or interpreter."""

    exit_code = 6


class DamagedWheel(Failure):
    """The file is no complete wheel: truncated, or no archive at all."""

    exit_code = 7


class TamperedWheel(Failure):
    """A file in the wheel is not what the wheel's own RECORD says."""

    exit_code = 8


class UnsafeMember(Failure):
    """A name in the wheel would land outside the folder that it is unpacked to."""

    exit_code = 9


class NoCompiler(Failure):
    exit_code = 10


class CompilerFailed(Failure):
    exit_code = 11

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said  # all that the compiler said


class NoSpace(Failure):
    """The disk, a quota or a file size limit is exhausted, which the tool or a program that it runs found out."""

    exit_code = 12

    def __init__(self, place: object, reason: str, needed: int = 2) -> None:
        super().__init__(
            f"no space left while writing to {place} ({reason}): free some (about {needed} GB are needed), or choose other "
            "folders with --output and LMSBUILD_CACHE"
        )


class OutputNotWritable(Failure):
    exit_code = 13


class DownloadFailed(Failure):
    exit_code = 14


class WrongHash(Failure):
    """The wheel is not the one that the catalogue knows under this file name."""

    exit_code = 15


class PatchMismatch(Failure):
    """A file that the patch edits is not the one that the patch was made for."""

    exit_code = 16


class NotACheckout(Failure):
    exit_code = 17


class DirtyCheckout(Failure):
    exit_code = 18


class AlreadyApplied(Failure):
    exit_code = 19


class StalePatch(Failure):
    """The committed patch is not what its sources generate."""

    exit_code = 20


class BadSources(Failure):
    """The patch's sources contradict each other or the base wheel."""

    exit_code = 21


class ResultsDiffer(Failure):
    """Training with Large Model Support gave other numbers than without."""

    exit_code = 22


class TrialFailed(Failure):
    """A program in the throw-away environment did not run to its end."""

    exit_code = 23


class MachineNotReady(Failure):
    """`lmsbuild doctor` found something missing."""

    exit_code = 24


class MissingProgram(Failure):
    """A program that the tool starts is not installed."""

    exit_code = 25


class NoSuchFile(Failure):
    exit_code = 26


class UnknownCuda(Failure):
    """The base wheel is for a CUDA version that the catalogue has no headers for."""

    exit_code = 27


class UnforwardedMethod(Failure):
    """A decorator leaves a virtual method to its base, which knows nothing of the decorated object."""

    exit_code = 28


class SourceUnreachable(Failure):
    """No place that was tried gives the framework's source: no network, or no repository there."""

    exit_code = 29


class NoSuchRevision(Failure):
    """The repository has neither the tag nor its commit."""

    exit_code = 30


class WrongCommit(Failure):
    """The tag is another commit there than the catalogue knows, or its files are others."""

    exit_code = 31


class SourceIncomplete(Failure):
    """The source lacks what the framework's own build needs, such as its submodules."""

    exit_code = 32


class FolderInUse(Failure):
    """The folder for a tree, a build or an index holds something else already."""

    exit_code = 33


class OtherRelease(Failure):
    """The checkout is at another tag than the one whose patch is to be applied."""

    exit_code = 34


class PartlyApplied(Failure):
    """A part of the patch, or another version of it, is in the checkout."""

    exit_code = 35


class BuildFailed(Failure):
    """The framework's own build gave up."""

    exit_code = 36


class BuildUnfinished(Failure):
    """An earlier build is in the way: it can be resumed, was begun with other settings, or runs now."""

    exit_code = 37


class BuildNotReady(Failure):
    """Something that the framework's own build needs is missing."""

    exit_code = 38


class NoCondaTools(Failure):
    """The packages that conda packages are built and read with are not installed."""

    exit_code = 39


class CondaBuildFailed(Failure):
    """The recipe did not become a package, or a test inside the package failed."""

    exit_code = 40


class UnknownRequirement(Failure):
    """The wheel requires a package whose conda name is not known here."""

    exit_code = 41


class WrongSubdir(Failure):
    """A conda package is for another platform than the folder it lies in."""

    exit_code = 42


class DamagedPackage(Failure):
    """The file is no complete conda package."""

    exit_code = 43


class PackageConflict(Failure):
    """The channel, or index of wheels, has a file of that name, version and build with other contents."""

    exit_code = 44


class BadChannel(Failure):
    """The channel, or the folder of an index of wheels, is not what the index says."""

    exit_code = 45


class UnknownRelease(Failure):
    """The registry has no wheel of the release that a tag is to be added for."""

    exit_code = 46


class BadRelease(Failure):
    """The official wheel of a release does not say what the catalogue has to know."""

    exit_code = 47


class TagExists(Failure):
    """The tag that is to be added is in the catalogue."""

    exit_code = 48


class ChecksFailed(Failure):
    """`lmsbuild tag check` found tags that do not build."""

    exit_code = 49


class AmbiguousTag(Failure):
    """Several frameworks have a tag of that name."""

    exit_code = 50


class UnknownPackage(Failure):
    """The framework is not published as a package of that name."""

    exit_code = 51


# Those of ci/gpu.


class WrongResult(Failure):
    """A check on a GPU failed, or a contender did not train to the end."""

    exit_code = 52

    def __init__(self, message: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.facts = dict(facts or {})  # what was found all the same, for the file of results


class NoGpu(Failure):
    exit_code = 53


class NoRuntime(Failure):
    """The headers or the library of CUDA's runtime are nowhere on this machine."""

    exit_code = 54


class NoFramework(Failure):
    """The interpreter has no PyTorch that is built for CUDA, or no TensorFlow that is built for it and patched."""

    exit_code = 55


class ProgramFailed(Failure):
    """A program that measures or checks did not run to its end."""

    exit_code = 56


class OutOfTime(Failure):
    """A part ended before all of it was done."""

    exit_code = 57


# Those of lmsbuild again.


class BadSetting(Failure):
    """A variable of the environment has a value that means nothing."""

    exit_code = 58


class ChannelUnreachable(Failure):
    """A conda channel that a package's tests need cannot be read."""

    exit_code = 59


class ContradictingWheel(Failure):
    """The wheel that was given is for another interpreter or platform than the one that was asked for."""

    exit_code = 60


class UnsolvableTest(Failure):
    """What a package requires is not in the channels, so that its tests did not run."""

    exit_code = 61


class NothingToBuild(Failure):
    """No row of the matrix is what was asked for."""

    exit_code = 62


class RowsFailed(Failure):
    """Some rows of the matrix could not be built."""

    exit_code = 63


class NoCluster(Failure):
    """There is no Dask scheduler at that address, it went away, or the packages to talk to it are not installed."""

    exit_code = 64


class OtherTool(Failure):
    """A machine of the cluster has another lmsbuild than the one that asks for a row."""

    exit_code = 65


class BadAttestation(Failure):
    """What lies beside a conda package is no attestation of it."""

    exit_code = 66


class OtherOwner(Failure):
    """A checkout or clone belongs to another user, so that git refuses to work in it."""

    exit_code = 67


class UnsafeSource(Failure):
    """A source would have git run a program, write outside the tree, or wait for ever."""

    exit_code = 68


class SystemRefused(Failure):
    """The system refused something that no part of the tool expects: files, processes or memory ran out, a path is too long."""

    exit_code = 74


class OutputLost(Failure):
    """What the tool says, its results or what it reports, cannot be written."""

    exit_code = 75


class NotLoaded(Failure):
    """The tool, or a library that it needs, cannot be imported."""

    exit_code = 76


class ReaderGone(Failure):
    """Nobody reads what the tool says any more: it ends like a program that SIGPIPE killed."""

    exit_code = 141


@contextmanager
def disk_failures(*places: object) -> Iterator[None]:
    """Turns the system's errors while files are written below `places` into failures that say what to do."""
    try:
        yield
    except OSError as error:
        place = error.filename or " or ".join(map(str, places))
        if error.errno in NO_SPACE:
            raise NoSpace(place, str(error.strerror)) from error
        if error.errno in NOT_WRITABLE:
            raise OutputNotWritable(
                f"cannot write {place}: {error.strerror}; choose other folders with --output and LMSBUILD_CACHE"
            ) from error
        raise
