"""An index of wheels in a folder: what it says, what is refused, and that it is valid at every moment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from lmsbuild.errors import (
    BadChannel,
    DamagedWheel,
    FolderInUse,
    NoSuchFile,
    PackageConflict,
    TamperedWheel,
    UnsafeMember,
)
from lmsbuild.index import index
from lmsbuild.published.folder import Published
from lmsbuild.wheel.wheel import WheelFile
from served import wheel
from synthetic import Member

SEEN = "lmsbuild-index.json"  # has dates


class Links(HTMLParser):
    """The links of a page, with their attributes, and its `meta`s."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []
        self.metas: list[dict[str, str | None]] = []
        self.other: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        {"a": self.links, "meta": self.metas}.get(tag, []).append(dict(attrs))
        self.other.append(tag)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index"


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file that a client can ask for, by name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEEN)
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.name.startswith(".")
    }


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(folder: Path) -> set[str]:
    """Whether nothing in the pages is wrong; returns the files that those for pip name."""
    named = set()
    root = json.loads((folder / "index.json").read_bytes())["projects"]
    assert {link["href"] for link in Links(folder / "index.html").links} <= {f"{project['name']}/" for project in root}
    for page in sorted(folder.glob("*/index.html")):
        for link in Links(page).links:
            address = urlsplit(urljoin(page.as_uri(), link["href"]))
            file = Path(unquote(address.path))
            assert file.parent == folder and address.fragment == f"sha256={sha256(file)}"
            metadata = file.with_name(f"{file.name}.metadata")
            for name in ("data-core-metadata", "data-dist-info-metadata"):
                assert link[name] == f"sha256={sha256(metadata)}"
            with zipfile.ZipFile(file) as archive:
                (inside,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
                assert archive.read(inside) == metadata.read_bytes()
            named.add(file.name)
    for page in folder.glob("*/index.json"):
        for file in json.loads(page.read_bytes())["files"]:
            assert file["hashes"]["sha256"] == sha256(folder / file["filename"])
    return named


def test_both_kinds_of_pages_describe_each_wheel(folder: Path, tmp_path: Path) -> None:
    first = wheel(tmp_path, headers=["Requires-Python: >=3.9,<4"])
    second = wheel(tmp_path, version="2.13.0+cu130.lms1")
    other = wheel(tmp_path, "Some.Other_Name", "1!2.0")
    done = index.publish(folder, [second, first, other])
    assert done == Published(tuple(sorted(path.name for path in (first, second, other))), 0, 3)
    assert check(folder) == set(done.added)
    assert json.loads((folder / "index.json").read_bytes()) == {
        "meta": {"api-version": "1.1"},
        "projects": [{"name": "some-other-name"}, {"name": "torch"}],
    }
    table = json.loads((folder / "torch/index.json").read_bytes())
    metadata = sha256(folder / f"{first.name}.metadata")
    assert table["files"][0] == {
        "filename": first.name,
        "url": f"../{first.name.replace('+', '%2B')}",
        "hashes": {"sha256": sha256(first)},
        "size": first.stat().st_size,
        "requires-python": ">=3.9,<4",
        "core-metadata": {"sha256": metadata},
    }
    assert (table["name"], table["versions"]) == ("torch", ["2.13.0+cpu.lms1", "2.13.0+cu130.lms1"])
    assert "requires-python" not in table["files"][1]
    assert [link["href"] for link in Links(folder / "index.html").links] == ["some-other-name/", "torch/"]
    html = Links(folder / "torch/index.html")
    assert html.links[0]["data-requires-python"] == ">=3.9,<4" and "data-requires-python" not in html.links[1]
    assert {"name": "pypi:repository-version", "content": "1.1"} in html.metas


def test_text_in_metadata_stays_text(folder: Path, tmp_path: Path) -> None:
    index.publish(folder, [wheel(tmp_path, headers=["Requires-Python: >=3.9,<4"])])
    assert Links(folder / "torch/index.html").links[0]["data-requires-python"] == ">=3.9,<4"
    assert "&gt;=3.9,&lt;4" in (folder / "torch/index.html").read_text()


def test_markup_in_metadata(folder: Path, tmp_path: Path) -> None:
    bad = wheel(tmp_path, headers=['Requires-Python: >=3.9"><script>alert(1)</script>'])
    refused(folder, bad, DamagedWheel, "states what no installer can read")


def test_the_same_wheels_give_the_same_bytes(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path / "w", version=f"2.{minor}.0+cpu.lms1") for minor in (13, 9, 10)]
    wheels.append(wheel(tmp_path / "w", "other", "1.0"))
    index.publish(tmp_path / "one", wheels)
    before = contents(tmp_path / "one")
    assert index.publish(tmp_path / "one", wheels).added == index.publish(tmp_path / "one").added == ()
    for given in reversed(wheels):
        index.publish(tmp_path / "two", [given])
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == before
    assert len(before) == 4 * 2 + 2 * 2 + 2


def test_what_did_not_change_is_not_read_again(folder: Path, tmp_path: Path) -> None:
    given = [wheel(tmp_path, version=f"{number}.0") for number in range(3)]
    index.publish(folder, given)
    assert index.publish(folder) == Published((), 3, 0)
    assert index.publish(folder, [wheel(tmp_path, "other", "1")]).hashed == 1
    os.utime(folder / given[0].name, ns=(1, 1))
    assert index.publish(folder) == Published((), 4, 1)
    assert index.publish(folder).hashed == 0


def test_wheels_that_lie_there_are_indexed(folder: Path) -> None:
    lying = wheel(folder)
    assert index.publish(folder).added == (lying.name,)
    assert index.publish(folder, [lying]).added == ()
    other = wheel(folder, "other", "1.0")
    assert index.publish(folder, [other]).added == (other.name,)
    assert check(folder) == {lying.name, other.name}


def test_pages_and_metadata_that_were_damaged_are_written_anew(folder: Path, tmp_path: Path) -> None:
    given = wheel(tmp_path)
    index.publish(folder, [given])
    before = contents(folder)
    (folder / f"{given.name}.metadata").write_text("Metadata-Version: 2.1\n")
    (folder / "torch/index.html").write_text('<meta name="pypi:repository-version" content="1.0">')
    (folder / "index.html").unlink()
    assert index.publish(folder).hashed == 0
    assert contents(folder) == before


def test_same_name_with_other_contents(folder: Path, tmp_path: Path) -> None:
    index.publish(folder, [wheel(tmp_path / "first")])
    before = contents(folder)
    other = wheel(tmp_path / "second", files={"torch/more.py": Member(b"")})
    with pytest.raises(PackageConflict, match="the one given has other contents"):
        index.publish(folder, [wheel(tmp_path, "another", "1.0"), other])
    assert contents(folder) == before
    shutil.copyfile(other, folder / other.name)
    with pytest.raises(PackageConflict, match="not the one that was published"):
        index.publish(folder)
    with pytest.raises(PackageConflict, match="wheel tags --build 1"):
        index.publish(tmp_path / "both", [tmp_path / "first" / other.name, other])
    built_again = other.rename(other.with_name(other.name.replace("-py3", "-1-py3")))
    shutil.copyfile(tmp_path / "first" / other.name, folder / other.name)
    assert index.publish(folder, [built_again]).added == (built_again.name,)


def test_one_wheel_under_two_spellings(folder: Path, tmp_path: Path) -> None:
    index.publish(folder, [wheel(tmp_path, "some_name", "1.0")])
    with pytest.raises(PackageConflict, match="it is there as some_name-1.0-py3-none-any.whl"):
        index.publish(folder, [wheel(tmp_path, "Some.name", "1.0")])


def test_nothing_leaves_an_index(folder: Path, tmp_path: Path) -> None:
    first = wheel(tmp_path)
    index.publish(folder, [first])
    (folder / first.name).unlink()
    before = contents(folder)
    with pytest.raises(BadChannel, match="put it back, since users may have locked it"):
        index.publish(folder, [wheel(tmp_path, "other", "1.0")])
    assert contents(folder) == before


def refused(folder: Path, bad: Path, kind: type[Exception], said: str) -> None:
    """Neither the bad wheel nor a good one beside it is published, whether given or lying there."""
    index.publish(folder, [wheel(bad.parent / "sound", "sound", "1.0")])
    before = contents(folder)
    with pytest.raises(kind, match=said):
        index.publish(folder, [wheel(bad.parent / "good", "good", "1.0"), bad])
    assert contents(folder) == before
    shutil.copyfile(bad, folder / bad.name)
    with pytest.raises(kind, match=said):
        index.publish(folder)
    (folder / bad.name).unlink()
    assert contents(folder) == before and not list(folder.glob(".lmsbuild-*/"))


@pytest.mark.parametrize("kept", [0, 100, -20])
def test_truncated_wheel(folder: Path, tmp_path: Path, kept: int) -> None:
    bad = wheel(tmp_path)
    bad.write_bytes(bad.read_bytes()[:kept])
    refused(folder, bad, DamagedWheel, "truncated")


def test_wheel_that_is_not_what_its_record_says(folder: Path, tmp_path: Path) -> None:
    bad = wheel(tmp_path, files={"torch/more.py": Member(b"other", listed=b"this")})
    refused(folder, bad, TamperedWheel, "torch/more.py in torch")


def test_wheel_with_a_member_outside(folder: Path, tmp_path: Path) -> None:
    refused(folder, wheel(tmp_path, files={"../more.py": Member(b"")}), UnsafeMember, "outside the wheel")


def test_wheel_under_another_name(folder: Path, tmp_path: Path) -> None:
    bad = wheel(tmp_path, stated="2.13.0+cu130.lms1")
    refused(folder, bad, DamagedWheel, r"says that it is torch 2\.13\.0\+cu130\.lms1: keep the name")
    named = bad.rename(tmp_path / 'torch-2.13.0-py3-none-any"><script>.whl')
    refused(tmp_path / "names", named, DamagedWheel, "is not the name of a wheel")


def test_wheel_that_was_named_for_another_interpreter(folder: Path, tmp_path: Path) -> None:
    made = wheel(tmp_path)
    refused(
        folder, made.rename(tmp_path / made.name.replace("-py3-", "-cp312-")), DamagedWheel, "is not for cp312-none"
    )


@pytest.mark.parametrize("lies_there", [False, True])
def test_a_wheel_that_changes_while_it_is_checked_is_indexed_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies_there: bool
) -> None:
    given = wheel(folder if lies_there else tmp_path)
    whole, check = given.read_bytes(), WheelFile.check_installable

    def change(file: WheelFile) -> None:
        given.write_bytes(b"another")
        check(file)

    monkeypatch.setattr(WheelFile, "check_installable", change)
    index.publish(folder, [given])
    page = json.loads((folder / "torch/index.json").read_text())
    assert page["files"][0]["hashes"]["sha256"] == hashlib.sha256(whole).hexdigest()
    assert (folder / given.name).read_bytes() == (b"another" if lies_there else whole)


def test_no_wheel_at_all(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="there is no wheel in"):
        index.publish(folder)
    assert not folder.exists()
    with pytest.raises(NoSuchFile, match="there is no file"):
        index.publish(folder, [tmp_path / "none-1-py3-none-any.whl"])
    with pytest.raises(NoSuchFile, match="there is no file"):
        index.publish(folder, [tmp_path / "none.whl"])
    os.mkfifo(tmp_path / "pipe-1-py3-none-any.whl")
    with pytest.raises(NoSuchFile, match="it is no file, but a folder, pipe or device"):
        index.publish(folder, [tmp_path / "pipe-1-py3-none-any.whl"])
    assert not folder.exists()


def test_links_are_refused_where_they_could_lead_elsewhere(folder: Path, tmp_path: Path) -> None:
    given = wheel(tmp_path / "given")
    folder.mkdir()
    (folder / given.name).symlink_to(given)
    with pytest.raises(BadChannel, match="is a link, whose file can change"):
        index.publish(folder)
    (folder / given.name).unlink()
    (tmp_path / "elsewhere").mkdir()
    (folder / "torch").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadChannel, match="is a link, and pages are written there"):
        index.publish(folder, [given])
    assert not list((tmp_path / "elsewhere").iterdir())
    (folder / "torch").unlink()
    link = tmp_path / given.name
    link.symlink_to(given)
    index.publish(folder, [link])
    assert not (folder / given.name).is_symlink() and check(folder) == {given.name}


@pytest.mark.parametrize("page", ["index.html", "torch/index.html"])
def test_pages_of_something_else_are_kept(folder: Path, tmp_path: Path, page: str) -> None:
    path = folder / page
    path.parent.mkdir(parents=True)
    path.write_text("<title>Our site</title>")
    with pytest.raises(FolderInUse, match="give another folder"):
        index.publish(folder, [wheel(tmp_path)])
    assert list(contents(folder)) == [page]


@pytest.mark.parametrize("page", ["index.html", "torch/index.html"])
def test_a_pipe_in_the_place_of_a_page_is_not_waited_for(folder: Path, tmp_path: Path, page: str) -> None:
    path = folder / page
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(FolderInUse, match="give another folder"):
        index.publish(folder, [wheel(tmp_path)])


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"projects": [{"name": "../../elsewhere"}]}', '{"projects": [{"name": 1}, 2]}']
)
def test_damaged_index(folder: Path, tmp_path: Path, text: str) -> None:
    index.publish(folder, [wheel(tmp_path)])
    (folder / "index.json").write_text(text)
    before = contents(folder)
    with pytest.raises(BadChannel, match="put back the one that was published"):
        index.publish(folder)
    assert contents(folder) == before


def test_damaged_page(folder: Path, tmp_path: Path) -> None:
    index.publish(folder, [wheel(tmp_path)])
    (folder / "torch/index.json").write_text('{"files": [{"filename": "x"}]}')
    with pytest.raises(BadChannel, match="put back the one that was published"):
        index.publish(folder)


def test_what_is_remembered_is_found_out_again(folder: Path, tmp_path: Path) -> None:
    index.publish(folder, [wheel(tmp_path)])
    before = contents(folder)
    for text in ("{", "[]", '{"x": 1}'):
        (folder / SEEN).write_text(text)
        assert index.publish(folder).hashed == 1
        assert contents(folder) == before


def run(folder: Path, *wheels: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "lmsbuild", "index", folder, *wheels]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    given = wheel(tmp_path)
    done = run(folder, given)
    assert (done.returncode, done.stdout) == (0, f"{given.name}\n")
    assert "1 added, 0 there before, 1 files read" in done.stderr
    file = tmp_path / "file"
    file.write_text("x")
    done = run(file, given)
    assert done.returncode == 13 and "cannot write to the index" in done.stderr, done.stderr


def test_two_runs_take_turns(folder: Path, tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, version=f"{number}.0") for number in range(6)]
    words = [sys.executable, "-m", "lmsbuild", "index", folder]
    runs = [subprocess.Popen([*words, *wheels[start::2]], stdout=subprocess.PIPE, text=True) for start in (0, 1)]
    printed = [line for run in runs for line in run.communicate(timeout=60)[0].splitlines()]
    assert [run.returncode for run in runs] == [0, 0]
    assert set(printed) == check(folder) == {path.name for path in wheels}


STOPS = """
import os, shutil, signal, sys
from pathlib import Path
from lmsbuild.index import index
folder, *wheels = map(Path, sys.argv[1:])
replace, calls = os.replace, []
def stopped(source, target):
    calls.append(target)
    if len(calls) > after:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
for after in range(20):
    copy = Path(f"{folder}-{after}")
    shutil.copytree(folder, copy)
    child = os.fork()
    if child == 0:
        os.replace = stopped
        index.publish(copy, wheels)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(ended, copy)
    if ended != -signal.SIGKILL:
        break
"""


def test_killed_before_each_rename_the_index_stays_valid(folder: Path, tmp_path: Path) -> None:
    """The renames are all that a client can see."""
    index.publish(folder, [wheel(tmp_path, version="1.0")])
    wheels = [wheel(tmp_path), wheel(tmp_path, "other", "1.0")]
    done = subprocess.run([sys.executable, "-c", STOPS, folder, *wheels], capture_output=True, text=True, check=True)
    ended = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    # Of two wheels, their METADATA, the pages of both projects and of the root, and of what was hashed.
    assert [int(code) for code, _ in ended] == [-signal.SIGKILL] * (2 + 2 + 4 + 2 + 1) + [0], done.stderr
    for _, name in ended:
        copy = Path(name)
        assert "torch-1.0-py3-none-any.whl" in check(copy)
        index.publish(copy, wheels)
        assert len(check(copy)) == 3
        assert not [path for path in copy.rglob(".lmsbuild-*") if path.name != ".lmsbuild-lock"]
    assert len({json.dumps(contents(Path(name))) for _, name in ended}) == 1
