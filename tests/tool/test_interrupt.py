"""Ctrl-C, termination and sudden death at every stage, and several runs at once: never half a wheel."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmsbuild.errors import OutputNotWritable
from lmsbuild.wheel.wheel import WheelFile
from lmsbuild.workspace import workspace
from workshop import DRIVE, Workshop

pytestmark = pytest.mark.build  # starts the tool for every signal and moment

MOMENTS = ["base wheel", "verify", "patch", "compile", "graft", "member:1", "member:4", "check", "publish"]
# In CI: while programs run, half way in the wheel, and when it is all but there.
SAMPLE = ("compile", "member:4", "publish")


def _sample(every: Sequence[object], sample: Sequence[object]) -> list[Any]:
    return [pytest.param(each, marks=() if each in sample else pytest.mark.release) for each in every]


def _wheels(workshop: Workshop) -> list[Path]:
    return sorted(workshop.output.glob("*.whl")) if workshop.output.exists() else []


def _leftovers(workshop: Workshop) -> list[str]:
    return [path.name for path in workshop.output.glob("*") if path.suffix != ".whl"]


def _temporary_names(output: Path) -> set[str]:
    return {path.name for path in output.iterdir() if path.name.startswith(".lmsbuild-")}


# The begin of a compiler that compiles as the rest of it says, but tells at once what it is.
TALKS = '#!/bin/sh\ncase " $* " in *" -o "*) ;; *) exec g++ "$@";; esac\n'


@pytest.mark.parametrize("moment", _sample(MOMENTS, SAMPLE))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(workshop: Workshop, number: signal.Signals, moment: str) -> None:
    done = workshop.build(signal=number, moment=moment)
    assert done.returncode == 128 + number, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr
    assert _wheels(workshop) == []
    assert _leftovers(workshop) == []


@pytest.mark.parametrize("moment", _sample(MOMENTS, SAMPLE))
def test_after_sudden_death_the_next_run_cleans_up(workshop: Workshop, moment: str) -> None:
    whole = Path(workshop.build().stdout.strip())
    expected = whole.read_bytes()
    whole.unlink()
    done = workshop.build(signal=signal.SIGKILL, moment=moment)
    assert done.returncode == -signal.SIGKILL
    assert _wheels(workshop) == []
    assert all(name.startswith(".lmsbuild-") for name in _leftovers(workshop))
    assert workshop.build().returncode == 0
    assert _leftovers(workshop) == []
    assert whole.read_bytes() == expected


def test_sudden_death_leaves_the_older_wheel_whole(workshop: Workshop) -> None:
    made = Path(workshop.build().stdout.strip())
    expected = made.read_bytes()
    workshop.build(signal=signal.SIGKILL, moment="member:4")
    assert made.read_bytes() == expected
    with WheelFile(made) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


@pytest.mark.parametrize("module", ["lmsbuild.cli", "lmsbuild.catalogue.forms"])
@pytest.mark.parametrize("dropped", ["KeyboardInterrupt", "LookupError"])
def test_an_interruption_while_the_tool_is_loaded(dropped: str, module: str) -> None:
    """At its start, and when a command is called: compiled modules drop exceptions there."""
    program = f"""import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        try:
            if name == "{module}":
                os.kill(os.getpid(), signal.SIGINT)
                sum(range(1000))
        except {dropped}:
            raise AttributeError(name)

sys.meta_path.insert(0, Interrupt())
runpy.run_module("lmsbuild", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "list"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.lstrip()) == (130, "", "error: interrupted\n")


def test_a_signal_that_python_drops() -> None:
    """It arrives in a destructor, where no exception can be caught."""
    program = """import os, signal, time
from lmsbuild.ending import signals

class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.01)

signals.install()
try:
    Slow()
    time.sleep(50)
except signals.Ended as error:
    print(error.number == signal.SIGHUP and signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=40)
    assert (done.stdout, done.stderr) == ("True\n", "")


# Those for which the tool has handlers, less the two that are sent at every moment above.
@pytest.mark.parametrize(
    "number",
    _sample(
        [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1], (signal.SIGINT, signal.SIGHUP)
    ),
)
def test_compilers_die_with_the_run(workshop: Workshop, number: signal.Signals) -> None:
    """A compiler that never ends, with a child of its own, is gone when a signal has ended the tool; a second one changes nothing."""
    with _compiling(workshop) as (process, started):
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        numbers = started()
    assert process.returncode in (128 + number, 128 + signal.SIGTERM), (
        errors
    )  # which of the two comes first is the system's choice
    assert errors.splitlines()[-1].startswith("error: interrupted"), errors
    _wait_for(lambda: not any(_runs(each) for each in numbers))
    assert (_leftovers(workshop), list((workshop.folder / "temporary").iterdir())) == ([], [])


def test_the_terminal_is_closed(workshop: Workshop) -> None:
    """The system sends SIGHUP, and nothing can be said any more."""
    program = """
import fcntl, sys, termios
from pathlib import Path
from lmsbuild import __main__, paths
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
patches = Path(sys.argv.pop(1))
paths.patches_folder = lambda: patches
__main__.main()
"""
    terminal, inside = os.openpty()
    mark = workshop.folder / "mark"
    compiler = workshop.folder / "slow-compiler"
    compiler.write_text(f'{TALKS}echo $$ > "{mark}.new"\nmv "{mark}.new" "{mark}"\nexec sleep 600\n')
    compiler.chmod(0o755)
    words = ["pytorch", "v2.13.0", "--base-wheel", workshop.base, "--output", workshop.output]
    process = subprocess.Popen(
        [sys.executable, "-c", program, workshop.patches, *words],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env={**os.environ, "CXX": str(compiler), "LMSBUILD_CACHE": str(workshop.cache)},
        start_new_session=True,
    )
    os.close(inside)
    with process:
        _wait_for(mark.exists)
        os.close(terminal)
        process.wait(60)
    assert process.returncode == 128 + signal.SIGHUP
    assert not _runs(int(mark.read_text()))
    assert _leftovers(workshop) == []


def test_a_signal_that_was_ignored_at_the_start_stays_so(workshop: Workshop) -> None:
    """As nohup has it."""
    with _compiling(workshop, ["env", "--ignore-signal=HUP"]) as (process, started):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        numbers = started()
    assert (process.returncode, errors.splitlines()[-1]) == (128 + signal.SIGTERM, "error: interrupted by SIGTERM")
    _wait_for(lambda: not any(_runs(each) for each in numbers))


@contextmanager
def _compiling(
    workshop: Workshop, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], list[int]]]]:
    """A run whose compilers never end; the function says which programs those have started."""
    marks = workshop.folder / "marks"
    marks.mkdir()
    compiler = workshop.folder / "slow-compiler"
    compiler.write_text(f'{TALKS}mktemp\nsleep 600 &\necho $! > "{marks}/$$"\nwait\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    temporary = workshop.folder / "temporary"
    temporary.mkdir()
    words = ["pytorch", "v2.13.0", "--base-wheel", str(workshop.base), "--output", str(workshop.output)]
    process = subprocess.Popen(
        [*before, sys.executable, DRIVE, workshop.patches, "0", "-", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "CXX": str(compiler),
            "LMSBUILD_CACHE": str(workshop.cache),
            "TMPDIR": str(temporary),
        },
        text=True,
    )
    with process:
        try:
            _wait_for(lambda: len(list(marks.iterdir())) == min(2, os.cpu_count() or 1))
        except BaseException:
            process.kill()  # which would be waited for
            raise
        time.sleep(0.2)
        yield process, lambda: [int(number) for mark in marks.iterdir() for number in (mark.name, mark.read_text())]


def test_no_program_is_started_once_the_run_ends(tmp_path: Path) -> None:
    """A thread that is about to start one when the others are killed; the pool would wait for it."""
    program = """
import sys, threading
from pathlib import Path
from lmsbuild import command, report

killed = threading.Event()
kill_all = command.kill_all

def end(done):
    raise KeyboardInterrupt

def say(words):
    if words[0] == "sleep":
        killed.wait()

def kill():
    kill_all()
    killed.set()

command.kill_all, report.command = kill, say
command.run_all([["true"], ["sleep", "600"]], folder=Path(sys.argv[1]), on_finish=end)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGINT, done.stderr


@pytest.mark.parametrize("moment", ["tempfile.mkdtemp", "os.unlink"])
def test_a_signal_while_a_folder_is_made_or_removed(tmp_path: Path, moment: str) -> None:
    program = f"""
import os, signal, sys, tempfile
from pathlib import Path
from lmsbuild.ending import signals
from lmsbuild.workspace import workspace

do = {moment}

def strike(*words, **more):
    made = do(*words, **more)
    os.kill(os.getpid(), signal.SIGHUP)
    return made

{moment} = strike
signals.install()
try:
    with workspace(Path(sys.argv[1])) as folder:
        (folder / "work").touch()
except signals.Ended as ended:
    sys.exit(ended.number)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (signal.SIGHUP, "")
    assert list(tmp_path.iterdir()) == []


def test_runs_at_once_into_one_folder_all_succeed(workshop: Workshop) -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda number: workshop.build(), range(4)))
    assert [done.returncode for done in runs] == [0] * 4, [done.stderr for done in runs]
    assert len({done.stdout for done in runs}) == 1
    assert _leftovers(workshop) == []
    with WheelFile(Path(runs[0].stdout.strip())) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_a_folder_is_never_seen_unlocked(tmp_path: Path) -> None:
    """Processes that begin at the same moments take each other's folders for leftovers if a lock has its name before it is held."""
    program = """
import sys
from pathlib import Path
from lmsbuild.workspace import workspace
for turn in range(500):
    with workspace(Path(sys.argv[1])) as folder:
        (folder / "work").touch()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [run.communicate(timeout=100)[1] for run in runs]
    assert ([run.returncode for run in runs], errors) == ([0] * 4, [""] * 4)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_leftover_stays(tmp_path: Path) -> None:
    """Links, pipes and folders with other names; nothing is waited for."""
    precious = tmp_path / "precious"
    output = tmp_path / "output"
    for folder in (
        precious,
        output,
        output / ".lmsbuild-mine",
        output / ".lmsbuild-pipe_one",
        output / ".lmsbuild-link_one",
    ):
        folder.mkdir()
    (precious / "lock").write_text("mine")
    (output / ".lmsbuild-folders_").symlink_to(precious)
    (output / ".lmsbuild-mine" / "lock").touch()
    os.mkfifo(output / ".lmsbuild-pipe_one" / "lock")
    (output / ".lmsbuild-link_one" / "lock").symlink_to(precious / "lock")
    before = sorted(path.name for path in output.iterdir())
    with workspace(output):
        pass
    assert sorted(path.name for path in output.iterdir()) == before
    assert (precious / "lock").read_text() == "mine"


def test_a_folder_is_removed_with_the_last_descriptor(tmp_path: Path) -> None:
    program = """import os, resource, sys
from pathlib import Path
from lmsbuild.workspace import workspace

with workspace(Path(sys.argv[1])) as folder:
    (folder / "/".join("abcdefgh")).mkdir(parents=True)
    (folder / "a/file").touch()
    (folder / "a/link").symlink_to("/")
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    opened = []
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        os.close(opened.pop())
"""
    words = [sys.executable, "-c", program, tmp_path / "output"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr, list((tmp_path / "output").iterdir())) == (0, "", [])


def test_a_folder_that_never_got_its_lock_is_removed_after_a_while(tmp_path: Path) -> None:
    killed, begun = tmp_path / ".lmsbuild-killed00", tmp_path / ".lmsbuild-begun000"
    for folder in (killed, begun):
        folder.mkdir()
    os.utime(killed, (0, 0))
    with workspace(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [begun]


@pytest.mark.parametrize("kind", ["pipe", "link to nothing", "loop", "file"])
def test_an_output_that_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "output"
    if kind == "pipe":
        os.mkfifo(output)
    elif kind == "file":
        output.touch()
    else:
        output.symlink_to("output" if kind == "loop" else "nothing")
    with pytest.raises(OutputNotWritable, match="--output"), workspace(output):
        pass
    assert os.path.lexists(output)
    assert not output.is_dir()


def test_any_name_will_do_for_the_output(workshop: Workshop) -> None:
    """Commas, colons and equals signs separate in the compiler's options; what it makes does not depend on the name."""
    name = "-a,b=c:d e$f%g\"h'i[bold]:x:ö"
    done = workshop.run("pytorch", "v2.13.0", "--base-wheel", workshop.base, "--output", name)
    assert done.returncode == 0, done.stderr
    (made,) = (workshop.folder / name).iterdir()
    assert made.read_bytes() == Path(workshop.build().stdout.strip()).read_bytes()


def test_a_run_does_not_remove_the_folder_of_one_that_works(workshop: Workshop) -> None:
    compiler = workshop.folder / "waiting-compiler"
    gate = workshop.folder / "gate"
    compiler.write_text(f'#!/bin/sh\nwhile [ ! -e "{gate}" ]; do sleep 0.05; done\nexec g++ "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(workshop.build, environment={"CXX": str(compiler)})
        _wait_for(lambda: workshop.output.exists() and any(_temporary_names(workshop.output)))
        before = _temporary_names(workshop.output)
        assert workshop.build().returncode == 0
        assert _temporary_names(workshop.output) == before
        gate.touch()
        assert slow.result().returncode == 0
    assert _leftovers(workshop) == []


def _runs(number: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except FileNotFoundError:
        return False


def _wait_for(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
