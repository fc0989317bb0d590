"""The tests' own machinery: tiers, groups, what is kept, and the table at the end of a run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kept

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import sys
sys.path.insert(0, {harness!r})
import durations, pytest, tiers
from pathlib import Path

GROUPS = Path("groups.json").absolute()

def pytest_addoption(parser):
    durations.add_option(parser)

@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    tiers.tell(node, GROUPS)

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return tiers.scheduler(config, log, GROUPS)

def pytest_itemcollected(item):
    tiers.assign(item)

def pytest_collection_modifyitems(config, items):
    tiers.order(config, items)

def pytest_configure(config):
    config.pluginmanager.register(durations.Durations(config.option.end_after))

@pytest.fixture(scope="session")
def built_wheel():
    return "a wheel"

@pytest.fixture
def by_way_of_another(built_wheel):
    return built_wheel
"""
TESTS = """
import pytest, time

def test_plain(): pass
def test_wheel(by_way_of_another): pass
@pytest.mark.build
def test_by_hand(): pass
@pytest.mark.release
def test_before_a_release(): pass
@pytest.mark.release
def test_wheel_before_a_release(built_wheel): pass
"""
INI = """[pytest]
addopts = -m "not release"
markers =
  unit: x
  build: x
  release: x
  xdist_group: x
"""


def _run(folder: Path, *words: str, tests: str = TESTS) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.format(harness=str(ROOT / "tests" / "harness")))
    (folder / "test_sample.py").write_text(tests)
    (folder / "pytest.ini").write_text(INI)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ((), ["test_wheel", "test_plain", "test_by_hand"]),
        (("-m", "unit"), ["test_plain"]),
        (("-m", "build and not release"), ["test_wheel", "test_by_hand"]),
        (
            ("-m", ""),
            ["test_wheel", "test_wheel_before_a_release", "test_plain", "test_by_hand", "test_before_a_release"],
        ),
        (("-p", "no:xdist"), ["test_wheel", "test_plain", "test_by_hand"]),
    ],
)
def test_a_tier_is_chosen_by_its_mark(tmp_path: Path, words: tuple[str, ...], passed: list[str]) -> None:
    done = _run(tmp_path, *words)
    names = [line.split("::")[1].split()[0] for line in done.stdout.splitlines() if " PASSED" in line]
    assert sorted(names) == sorted(passed), done.stdout + done.stderr
    assert names[0] == passed[0]  # what requests a dear fixture comes first


@pytest.mark.build
def test_tests_of_a_dear_fixture_or_of_a_file_share_a_process(tmp_path: Path) -> None:
    tests = "import pytest\n" + "".join(
        f"def test_{name}{number}({fixture}): pass\n"
        for number in range(6)
        for name, fixture in (("dear", "built_wheel"), ("cheap", ""))
    )
    (tmp_path / "test_another.py").write_text(tests)
    done = _run(tmp_path, "-n", "2", tests=tests)
    ran: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"\[(gw\d)\] .*PASSED (\S+)::test_(dear|cheap)\d", line):
            ran.setdefault("dear" if match[3] == "dear" else match[2], set()).add(match[1])
    assert {group: len(processes) for group, processes in ran.items()} == {
        "dear": 1,
        "test_another.py": 1,
        "test_sample.py": 1,
    }, done.stdout


def test_the_whole_suite_is_collected_without_plugins_that_it_can_do_without() -> None:
    words = ["--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "tests/tool/test_target.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.build
def test_a_run_ends_with_what_took_longest(tmp_path: Path) -> None:
    tests = """
import pytest, time
@pytest.fixture
def slow(): time.sleep(0.2)
def test_it(slow): time.sleep(0.1)
"""
    done = _run(tmp_path, "--end-after", "5", tests=tests)
    _, _, table = done.stdout.partition("slowest fixtures")
    seconds = {
        line.split(maxsplit=1)[1]: float(line.split()[0])
        for line in table.splitlines()
        if line[:8].strip()[:1].isdigit()
    }
    assert seconds["slow"] >= 0.2
    assert seconds["test_sample.py"] >= 0.3
    assert done.returncode == 0


@pytest.mark.build  # starts processes and waits for their end
@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_a_run_that_takes_too_long_ends_itself_with_the_table(tmp_path: Path, processes: tuple[str, ...]) -> None:
    tests = "import time\ndef test_quick(): pass\ndef test_hangs(): time.sleep(1000)\n"
    begin = time.monotonic()
    done = _run(tmp_path, "--end-after", "0.1", *processes, tests=tests)
    assert time.monotonic() - begin < 100  # and not the 1000 seconds of the test
    assert done.returncode != 0
    assert "slowest files" in done.stdout
    assert "error: ended, since the run took more than 0.1 minutes" in done.stdout


def test_a_wheel_is_built_once_for_the_same_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMS_TEST_CACHE", str(tmp_path))
    built: list[Path] = []

    def build(folder: Path) -> Path:
        built.append(folder)
        (folder / "a-1-py3-none-any.whl").write_bytes(b"contents")
        return folder / "a-1-py3-none-any.whl"

    first = kept.wheel("a", "base", build)
    assert kept.wheel("a", "base", build) == first
    assert len(built) == 1
    kept.wheel("a", "another base", build)
    assert len(built) == 2
    first.write_bytes(b"damaged")
    assert kept.wheel("a", "base", build).read_bytes() == b"contents"
    monkeypatch.setattr(kept, "sources", lambda: "other sources")
    kept.wheel("a", "base", build)
    assert len(built) == 4


def test_a_wheel_is_made_of_what_its_builder_imports() -> None:
    """So a change of another command builds no wheel again."""
    names = {path.name for path in kept.modules("lmsbuild.graft.graft")}
    assert {"graft.py", "compilation.py", "errors.py"} <= names
    assert "vtable.py" in names  # imported in a function
    assert not names & {"cli.py", "doctor.py", "trial.py"}


def test_a_build_that_is_interrupted_leaves_no_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMS_TEST_CACHE", str(tmp_path))

    def build(folder: Path) -> Path:
        (folder / "a-1-py3-none-any.whl").write_bytes(b"con")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.wheel("a", "base", build)
    assert not list(tmp_path.rglob("*.whl"))


def test_an_environment_that_another_run_uses_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMS_TEST_CACHE", str(tmp_path))
    installed: list[Path] = []

    def install(place: Path, wanted: str, *_: object) -> None:
        installed.append(place)
        place.mkdir(parents=True, exist_ok=True)
        (place / "complete").write_text(wanted)

    monkeypatch.setattr(kept, "_install", install)
    monkeypatch.setattr(kept, "_users", [])
    one, two = tmp_path / "one.whl", tmp_path / "two.whl"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    first = kept.environment("e", [one])
    assert kept.environment("e", [one]) == first  # shared by runs of the same wheel
    other = kept.environment("e", [two])
    assert other != first
    for user in kept._users:
        user.close()
    kept._users.clear()
    assert kept.environment("e", [two]) in (first, other)
    assert len(set(installed)) == 2
    for user in kept._users:
        user.close()
