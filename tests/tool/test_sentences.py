"""Every failure is a sentence: hostile settings, files, limits and streams, the exit code of each, and words of what is said."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import platformdirs
import pytest

from lmsbuild import __main__ as program
from lmsbuild import cli, doctor, paths, source_date
from lmsbuild.catalogue import catalogue
from lmsbuild.elf import symbols
from lmsbuild.ending import refusals, streams
from lmsbuild.errors import (
    BadSetting,
    BadSources,
    DamagedWheel,
    Failure,
    MissingProgram,
    NoCompiler,
    NoSpace,
    SystemRefused,
    TrialFailed,
    UnsafeMember,
)
from lmsbuild.graft import compilation
from lmsbuild.index import index
from lmsbuild.matrix import stamp
from lmsbuild.matrix.row import Row
from lmsbuild.trial import timeline, trial
from lmsbuild.wheel.wheel import WheelFile

assert cli  # loaded here, not by every fork
TAG = "pytorch:v2.13.0"
LONG = "a" * 300
DIGITS = "9" * 5000
ROW = Row("pytorch", "v2.13.0", "torch", "3.11", "linux-64", "wheel")


class Ended(NamedTuple):
    code: int
    output: bytes
    errors: str


def run(folder: Path, *words: str, prepare: Callable[[], object] = lambda: None) -> Ended:
    """Runs the command line in a fork of this process, in `folder`, after `prepare`."""
    output, errors = folder / "output.txt", folder / "errors.txt"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(folder)
            for number, path in ((1, output), (2, errors)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.argv = ["lmsbuild", *words]
            prepare()
            program.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:  # noqa: BLE001  (as the interpreter itself does at the end)
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), output.read_bytes(), errors.read_text(errors="replace"))


def _lose_git(folder: Path) -> None:
    subprocess.run(["git", "init", "--quiet", folder / "checkout"], check=True)
    os.environ["PATH"] = str(folder)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with odd things."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "torch-2.13.0-cp311-cp311-linux_x86_64.whl")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["pytorch", "v2.13.0", "--base", "torch-2.13.0-cp311-cp311-linux_x86_64.whl"], 26, "is no file"),
        (["source", TAG, LONG], 74, "File name too long; take a shorter path"),
        (["build-all", "--tag", TAG, "--output", "loop"], 74, "remove the links that lead to each other"),
        (["matrix", "--shard", f"1/{DIGITS}"], 62, "--shard takes a part such as 1/4"),
        (["matrix", "--shard", "１/２"], 62, "--shard takes a part such as 1/4"),
        (["pytorch", "v2.13.0", "--python", "3.１２"], 6, "--python takes a version such as 3.12"),
        (["pytorch", "v2.13.0", "--python", f"3.{DIGITS}"], 6, "--python takes a version such as 3.12"),
        (["tag", "add", "pytorch", f"{DIGITS}.0"], 21, "is not a tag such as v2.13.0"),
        (["pytorch", "\udcff\n\x1b[31m"], 4, r"'\udcff\n\x1b[31m'"),
        (["list", "\a"], 2, r"unexpected extra argument (\x07)"),
        (["patch", TAG, "\x1b[31m"], 17, r"\x1b[31m is no git checkout"),
        (["try", "file"], 7, "file is not the name of a wheel"),
    ],
)
def test_odd_words_are_answered(odd: Path, words: list[str], code: int, said: str) -> None:
    ended = run(odd, *words)
    assert (ended.code, said in ended.errors) == (code, True), ended
    assert not any(each in ended.errors for each in ("Traceback", "\x1b"))


def _remove(folder: Path) -> None:
    os.chdir(folder)
    folder.rmdir()


def _set(**variables: str) -> None:
    os.environ.update(variables)


def _limit(kind: int, most: int) -> None:
    resource.setrlimit(kind, (most, most))


def _raise(error: BaseException) -> None:
    def tags(patches: Path) -> list[catalogue.Tag]:
        raise error

    catalogue.tags = tags


def _lose(module: str) -> None:
    sys.modules[module] = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("words", "prepare", "code", "said"),
    [
        (["pytorch", "v2.13.0", "--mode", "full", "--dry-run"], lambda odd: _remove(odd / "folder"), 74, "was removed"),
        (["list"], lambda odd: _limit(resource.RLIMIT_NOFILE, 4), 74, "raise the limit of open files"),
        (["patches", TAG, "--output", "made"], lambda odd: _limit(resource.RLIMIT_FSIZE, 8192), 12, "File too large"),
        (["list"], lambda odd: _raise(MemoryError()), 74, "not enough memory"),
        (["list"], lambda odd: _raise(OSError(errno.EAGAIN, "busy")), 74, "busy; close other programs"),
        (["source", TAG, "tree"], lambda odd: _lose("platformdirs"), 76, "cannot be loaded"),
        (["patch", TAG, "checkout"], lambda odd: _lose_git(odd), 25, "cannot run git"),
        (["list"], lambda odd: _set(PATH=""), 0, ""),
        (["--help"], lambda odd: _set(COLUMNS="abc", TERM="\udcff"), 0, ""),
    ],
)
def test_what_the_system_refuses_is_said(
    odd: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    prepare: Callable[[Path], None],
    code: int,
    said: str,
) -> None:
    monkeypatch.delenv("LMSBUILD_CACHE", raising=False)
    ended = run(odd, *words, prepare=lambda: prepare(odd))
    assert (ended.code, said in ended.errors, "Traceback" in ended.errors) == (code, True, False), ended


def test_a_fault_of_the_tool_shows_its_traceback_and_asks_for_a_report(tmp_path: Path) -> None:
    ended = run(tmp_path, "list", prepare=lambda: _raise(ZeroDivisionError("oh")))
    assert (ended.code, "Traceback" in ended.errors, "please report it" in ended.errors) == (1, True, True), ended


def _full(number: int) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), number)


def _unread(number: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, number)


@pytest.mark.parametrize(
    ("words", "number", "lose", "code"),
    [
        (["list"], 1, _full, 75),
        (["list"], 1, os.close, 75),
        (["list"], 1, _unread, 141),
        (["--help"], 1, _full, 75),
        (["--help"], 1, _unread, 141),
        (["matrix"], 2, _full, 75),  # says on standard error how many rows there are
        (["matrix"], 2, _unread, 141),
        (["matrix"], 2, os.close, 0),
        (["list"], 2, _full, 0),  # says nothing there
        (["list", "x"], 2, _full, 2),
        (["list", "x"], 2, _unread, 2),
        (["pytorch", "v9"], 2, _full, 4),
        (["pytorch", "v9"], 2, _unread, 4),
        (["pytorch", "v9"], 2, os.close, 4),
    ],
)
def test_output_that_is_lost(
    tmp_path: Path, words: list[str], number: int, lose: Callable[[int], None], code: int
) -> None:
    ended = run(tmp_path, *words, prepare=lambda: lose(number))
    assert (ended.code, "Traceback" in ended.errors) == (code, False), ended
    assert ("cannot write to standard output" in ended.errors) is (number == 1 and code == 75)
    assert number == 1 or code or ended.output


def test_a_file_that_is_opened_later_does_not_become_standard_output(tmp_path: Path) -> None:
    """It would get the lowest descriptor that is free."""

    def prepare() -> None:
        os.closerange(0, 3)
        streams.guard()
        os.write(os.open(tmp_path / "later", os.O_WRONLY | os.O_CREAT), b"x")

    assert run(tmp_path, "list", prepare=prepare).code == 75
    assert (tmp_path / "later").read_bytes() == b"x"


def test_names_keep_their_bytes_on_standard_output(tmp_path: Path) -> None:
    ended = run(tmp_path, "--help", prepare=lambda: (streams.guard(), click.echo("\udcff")))
    assert (ended.code, ended.output[:2]) == (0, b"\xff\n")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.EMFILE, "too many", "x"), SystemRefused, "x: too many; raise the limit of open files"),
        (OSError(errno.ENOENT, "No usable temporary directory"), SystemRefused, "in TMPDIR"),
        (OSError(errno.EDQUOT, "quota", "x"), NoSpace, "no space left while writing to x (quota)"),
        (OSError("odd\nmore"), SystemRefused, "refused something: odd; mend that"),
    ],
)
def test_errors_of_the_system_say_what_to_do(error: OSError, kind: type[Failure], said: str) -> None:
    found = refusals.explained(error)
    assert (type(found), said in str(found)) == (kind, True), found


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("raise ImportError('lost')", 76, "cannot be loaded: lost"),
        ("def", 76, "cannot be loaded"),
        ("int.lost", 76, "cannot be loaded: type object 'int' has no attribute 'lost'"),
        ("import signal, os; os.kill(os.getpid(), signal.SIGINT)", 130, "error: interrupted"),
        ("raise OSError(24, 'Too many open files')", 74, "raise the limit of open files"),
    ],
)
@pytest.mark.parametrize("module", ["click", "difflib"])  # one that each command needs, and one that `list` does
def test_an_installation_that_does_not_load(tmp_path: Path, module: str, source: str, code: int, said: str) -> None:
    (tmp_path / f"{module}.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "lmsbuild", "list"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done


@pytest.mark.parametrize("source", ["def", "int.lost", "raise OSError(24, 'Too many open files')"])
def test_a_failure_is_said_without_what_colours_it(tmp_path: Path, source: str) -> None:
    (tmp_path / "rich.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "lmsbuild", "patch", "v0", "."]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("error: there is no tag 'v0'")) == (4, True), done


TAGS = """package = "torch"
[[tag]]
name = "v2.13.0"
commit = "c"
version = "2.13.0"
abi = "cxx11"
standard = "c++20"
generation = "2.12"
supports = ["cpu"]
blobs = {}
[tag.wheels]
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('package = "torch"\n', "", "has no package: add it, which is a text"),
        ('commit = "c"\n', "", "has no commit of tag number 1"),
        ('"c"', "5", "5 is not a text, which commit of tag number 1 has to be"),
        ('"c"', "nan", "nan is not a text"),
        ('"c"', DIGITS, "cannot be read as TOML"),
        ('"c"', f"{'[' * 9999}", "cannot be read as TOML"),
        ('["cpu"]', '"cpu"', "'cpu' is not a list, which supports of tag number 1 has to be"),
        ('["cpu"]', '["cpu", 1979-05-27]', "which supports of tag number 1 number 2 has to be"),
        ("blobs = {}", "blobs = []", "[] is not a table"),
        ("blobs = {}", "blob = {}\nblobs = {}", "has 'blob' of tag number 1, which means nothing there"),
        ('"v2.13.0"', f'"v2.{DIGITS}"', "is not a tag such as v2.13.0"),
        ("[tag.wheels]\n", '[tag.wheels]\n"torch.whl" = "0"\n', "it may have the name of a wheel"),
        ("[[tag]]", "[tag]", "a table is not a list, which tag has to be"),
        ("[[tag]]", "[[tag", "cannot be read as TOML"),
        ("package", "\ufeffpackage", "cannot be read as TOML"),
        ("torch", "\udcff", "cannot be read as TOML"),
    ],
)
def test_a_catalogue_that_is_malformed_is_refused_with_the_key(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    file = tmp_path / "catalogue/pytorch/tags.toml"
    file.parent.mkdir(parents=True)
    file.write_bytes(TAGS.encode())
    assert [tag.name for tag in catalogue.tags(tmp_path)] == ["v2.13.0"]
    assert before in TAGS
    file.write_bytes(TAGS.replace(before, after, 1).encode(errors="surrogateescape"))
    with pytest.raises(BadSources) as caught:
        catalogue.tags(tmp_path)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_every_table_of_the_checkout_has_its_form() -> None:
    patches, recipes = paths.patches_folder(), paths.recipes_folder()
    found = {file.name for folder in (patches / "catalogue", recipes) for file in folder.rglob("*.toml")}
    assert found == set(catalogue.forms.FORMS)
    with pytest.raises(BadSources, match="No such file or directory"):
        catalogue.read_toml(patches / "catalogue/none.toml")


@pytest.mark.parametrize(
    "text", ["abc", "-1", "1.5", "1e9", "0x10", "１２", " 1", DIGITS, str(source_date.LATEST + 1), "\udcff"]
)
def test_dates_that_are_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    with pytest.raises(BadSetting, match=r"^SOURCE_DATE_EPOCH is .{1,60}: set it to seconds since 1970"):
        source_date.chosen()


@pytest.mark.parametrize(
    "expanded",
    [
        pytest.param(lambda path: path, id="as older releases of platformdirs"),
        pytest.param(RuntimeError, id="as newer ones"),
    ],
)
def test_there_is_a_folder_for_the_cache(
    monkeypatch: pytest.MonkeyPatch, expanded: Callable[[str], str | Exception]
) -> None:
    def nowhere(name: str) -> Path:
        found = expanded(f"~/.cache/{name}")
        if isinstance(found, Exception):
            raise found
        return Path(found)

    monkeypatch.setattr(platformdirs, "user_cache_path", nowhere)
    monkeypatch.setenv("LMSBUILD_CACHE", "c")
    assert paths.cache_folder() == Path("c")
    monkeypatch.setenv("LMSBUILD_CACHE", "")
    with pytest.raises(BadSetting, match="name a folder in LMSBUILD_CACHE, or set HOME"):
        paths.cache_folder()


def _program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ('g++ "', BadSetting, "CXX is 'g++ \"'"),
        ("/", NoCompiler, "looked for /"),
        ("./file", NoCompiler, "looked for ./file"),
        ("~/none -O2", NoCompiler, "looked for ~/none"),
    ],
)
def test_compilers_that_are_none(
    odd: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Failure], said: str
) -> None:
    monkeypatch.chdir(odd)
    monkeypatch.setenv("CXX", text)
    with pytest.raises(kind) as caught:
        compilation.compiler()
    assert said in str(caught.value)


def test_a_compiler_by_a_relative_path_is_found_from_other_folders(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(odd / "c", "")
    monkeypatch.chdir(odd)
    monkeypatch.setenv("CXX", "./c '-O 2'")
    assert compilation.compiler() == [str(odd / "c"), "-O 2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\nprintf '\\377\\033[31m'\n", "cannot build"),
        ("#!/bin/sh\nexit 1\n", "unknown version cannot build"),
        ("\0\0\0\0", "Exec format error"),
        ("#!/nowhere\n", "No such file or directory"),
    ],
)
def test_doctor_goes_on_after_a_compiler_that_is_none(
    odd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    monkeypatch.setenv("CXX", str(_program(odd / "c", text)))
    fine = doctor.Finding("other", "fine")
    for name in ("_interpreter", "_git", "_pip", "_cuda", "_venv"):
        monkeypatch.setattr(doctor, name, lambda *_: fine)
    with pytest.raises(Failure, match="^3 of the above must be mended"):
        doctor.run(odd / "file", odd / LONG)
    shown = capsys.readouterr().out
    assert all(words in shown for words in (said, f"{odd / 'file'} is no folder", "File name too long"))
    assert "\x1b" not in shown


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("library")
    (folder / "a.c").write_text('int printf(const char *, ...); int f(void) { return printf("x"); }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "a.so", folder / "a.c"], check=True)
    return (folder / "a.so").read_bytes()


def test_damaged_libraries_are_told_by_their_names(library: bytes, tmp_path: Path) -> None:
    chance, file, refused = random.Random(1), tmp_path / "a.so", 0
    for _ in range(150):
        data = bytearray(library)
        for place in (chance.randrange(64), len(data) - 1 - chance.randrange(1800), chance.randrange(len(data))):
            data[place] = chance.choice((0, 255, chance.randrange(256)))
        file.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)
        try:
            symbols.needed_versions(file)
            symbols.uses_new_strings(file)
            symbols.needed_library(file, "libc")
            symbols.exported_functions(file, "f")
        except DamagedWheel as error:
            refused += "a.so is no library, or damaged" in str(error)
    assert refused > 20


GOOD: Mapping[str, bytes] = {
    "a-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: a\nVersion: 1\n",
    "a-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
    "a-1.dist-info/RECORD": b"",
}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("WHEEL", b"Tag: abc\n", "states the tag 'abc', which is none"),
        ("WHEEL", b"\xff", "has a WHEEL that is not UTF-8"),
        ("WHEEL", b"Wheel-Version: 1.0\n", "as its WHEEL says"),
        ("METADATA", b"\xff\xfe", "has a METADATA that is not UTF-8"),
        ("RECORD", b"\xff", "has a RECORD that cannot be read"),
        ("RECORD", b'"' + b"x" * 200_000, "has a RECORD that cannot be read"),
    ],
)
def test_wheels_with_malformed_texts_are_refused(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, content in {**GOOD, f"a-1.dist-info/{name}": data}.items():
            archive.writestr(member, content)
    with pytest.raises(Failure, match=said):
        index.publish(tmp_path / "index", [wheel])


@pytest.mark.parametrize("place", ["version needed", "flags"])
def test_archives_that_python_cannot_read_are_refused(tmp_path: Path, place: str) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a\u00e9", b"")
    data = bytearray(wheel.read_bytes())
    entry = data.index(b"PK\1\2")
    if place == "flags":  # says that the name is UTF-8
        data[entry + 46 + 1] = 0xFF
    else:
        data[entry + 6] = 255
    wheel.write_bytes(data)
    with pytest.raises(
        (DamagedWheel, UnsafeMember), match="no wheel at all|a member whose name is not plain UTF-8|zip version"
    ):
        WheelFile(wheel)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"projects": {"a": NaN}}', '{"projects": [{"name": 5}]}', "\0", "[]"])
def test_indices_that_are_malformed_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    wheel = tmp_path / "b-1-py3-none-any.whl"
    wheel.write_bytes(b"")
    with pytest.raises(Failure, match=r"index\.json"):
        index.publish(tmp_path, [wheel])


@pytest.mark.parametrize(
    "text", ["{}", "[", "[" * 100_000, '{"products": [{"path": 5, "sha256": ""}], "inputs": {}}', "5"]
)
def test_a_stamp_that_is_malformed_is_none(tmp_path: Path, text: str) -> None:
    stamp.log_file(tmp_path, ROW).parent.mkdir()
    (tmp_path / stamp.FOLDER / f"{ROW.name}.json").write_text(text)
    assert stamp.read(tmp_path, ROW, {}) is None


PATCHED = Path("torch-2.13.0+lms1-cp311-cp311-linux_x86_64.whl")


@pytest.mark.parametrize("text", ["#!/bin/sh\n", "#!/bin/sh\necho a b c\n", "#!/bin/sh\nexit 3\n"])
def test_interpreters_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(MissingProgram, match="is no Python interpreter"):
        trial.run(PATCHED, None, "transformer", 1, _program(tmp_path / "python", text))


def test_pictures_do_not_depend_on_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which matplotlib reads as it is imported, and gives up at some of them."""
    settings = tmp_path / "matplotlibrc"
    settings.write_bytes(b"axes.titlesize: \xff\n")
    run_ = timeline.Run([1.0], [timeline.Sample(0.5, 1 << 20, 1 << 20)])
    text = f"""
from pathlib import Path
from lmsbuild.trial.timeline import Run, Sample, draw
run = {run_!r}
draw(Path({str(tmp_path / "picture")!r}), run, run, 1 << 20, "title")
"""
    environment = {**os.environ, "MPLBACKEND": "nonsense", "MATPLOTLIBRC": str(settings)}
    subprocess.run([sys.executable, "-c", text], env=environment, check=True)
    assert (tmp_path / "picture.svg").is_file()


def test_what_libraries_print_among_the_results_is_left_out() -> None:
    assert trial.read_entries(["warning", '{"step": 1}', "5", "[", "NaN"]) == [{"step": 1}]


def test_a_training_without_results_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_checked", lambda wheel, folder: wheel)
    text = "#!/bin/sh\ncase $1 in -I) echo cp311 3.11;; -m) ;; *) echo {};; esac\n"
    (tmp_path / "bin").mkdir()
    python = _program(tmp_path / "bin/python", text)
    with pytest.raises(TrialFailed, match="without its results"):
        trial.run(PATCHED, None, "transformer", 1, python, tmp_path)
