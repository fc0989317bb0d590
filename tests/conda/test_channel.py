"""A channel in a folder: what is published, what is refused, and that it is valid at every moment."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from bundles import attest, bundle, served
from lmsbuild import paths
from lmsbuild.channel import audit, channel
from lmsbuild.errors import BadChannel, DamagedPackage, NoSuchFile, OutputNotWritable, PackageConflict, WrongSubdir
from lmsbuild.published.folder import SEEN, Published
from stand_ins import SUBDIR, make

RECIPES = paths.recipes_folder()
UNPRIVILEGED = 65534  # a user id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "channel"


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file in the channel that a client can ask for, by name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_publish_writes_an_index_that_describes_each_package(folder: Path, tmp_path: Path) -> None:
    first = make(tmp_path, "one", depends=["two >=1.0"])
    second = make(tmp_path, "two", subdir="noarch")
    done = channel.publish(folder, [first, second])
    assert sorted(done.added) == [f"{SUBDIR}/{first.name}", f"noarch/{second.name}"]
    index = json.loads((folder / SUBDIR / "repodata.json").read_bytes())
    assert index["info"] == {"subdir": SUBDIR}
    record = index["packages.conda"][first.name]
    data = first.read_bytes()
    assert record["sha256"] == hashlib.sha256(data).hexdigest()
    assert record["md5"] == hashlib.md5(data).hexdigest()
    assert (record["size"], record["depends"], record["name"]) == (len(data), ["two >=1.0"], "one")
    for name in ("repodata.json", "run_exports.json"):
        packed = (folder / SUBDIR / f"{name}.zst").read_bytes()
        assert zstandard.decompress(packed) == (folder / SUBDIR / name).read_bytes()
    exports = json.loads((folder / SUBDIR / "run_exports.json").read_bytes())
    assert exports["packages.conda"] == {first.name: {"run_exports": {}}}
    assert audit.check(folder, RECIPES) == 2


def add_exports(package: Path, exports: dict[str, list[str]], suffix: str) -> Path:
    """The package in the format of `suffix`, with what packages that are built against it come to require."""
    stem = package.name.removesuffix(".conda")
    unpack = zstandard.ZstdDecompressor()
    with zipfile.ZipFile(package) as archive:
        others = {name: archive.read(name) for name in archive.namelist() if not name.startswith("info-")}
        info = io.BytesIO(unpack.stream_reader(archive.read(f"info-{stem}.tar.zst")).read())
    contents = io.BytesIO(unpack.stream_reader(others[f"pkg-{stem}.tar.zst"]).read())
    data = json.dumps(exports).encode()
    row = tarfile.TarInfo("info/run_exports.json")
    row.size = len(data)
    with tarfile.open(fileobj=info, mode="a") as tar, tarfile.open(fileobj=contents) as files:
        tar.addfile(row, io.BytesIO(data))
        if suffix == ".tar.bz2":
            for member in files:
                tar.addfile(member, files.extractfile(member))
    target = package.with_name(f"{stem}{suffix}")
    if suffix == ".tar.bz2":
        target.write_bytes(bz2.compress(info.getvalue()))
    else:
        with zipfile.ZipFile(target, "w") as archive:
            for name, part in {**others, f"info-{stem}.tar.zst": zstandard.compress(info.getvalue())}.items():
                archive.writestr(name, part)
    return target


@pytest.mark.parametrize(("suffix", "key"), [(".conda", "packages.conda"), (".tar.bz2", "packages")])
def test_run_exports(folder: Path, tmp_path: Path, suffix: str, key: str) -> None:
    """What one publishing wrote stays when another adds a package, though nothing is read again."""
    exports = {"weak": ["small >=1.0,<2.0a0"], "strong": ["other"]}
    package = add_exports(make(tmp_path), exports, suffix)
    other = make(tmp_path, "other")
    for given in (package, other):
        assert channel.publish(folder, [given]).hashed == 1
    table = json.loads((folder / SUBDIR / "run_exports.json").read_bytes())
    assert table["info"] == {"subdir": SUBDIR, "version": 1}
    rows = {**table["packages"], **table["packages.conda"]}
    assert rows == {package.name: {"run_exports": exports}, other.name: {"run_exports": {}}}
    assert package.name in table[key]
    assert audit.check(folder, RECIPES) == 2


def test_every_channel_has_noarch(folder: Path, tmp_path: Path) -> None:
    channel.publish(folder, [make(tmp_path)])
    assert json.loads((folder / "noarch/repodata.json").read_bytes())["packages.conda"] == {}


def test_what_did_not_change_is_not_read_again(folder: Path, tmp_path: Path) -> None:
    channel.publish(folder, [make(tmp_path, build=str(number)) for number in range(3)])
    before = contents(folder)
    assert channel.publish(folder, []) == Published((), 3, 0)
    assert contents(folder) == before
    assert channel.publish(folder, [make(tmp_path, "other")]).hashed == 1


def test_a_package_whose_date_alone_changed_is_the_same(folder: Path, tmp_path: Path) -> None:
    package = make(tmp_path)
    channel.publish(folder, [package])
    os.utime(folder / SUBDIR / package.name, ns=(1, 1))
    assert channel.publish(folder, []).hashed == 1
    assert channel.publish(folder, []).hashed == 0


def test_publishing_again_changes_nothing(folder: Path, tmp_path: Path) -> None:
    package = make(tmp_path)
    channel.publish(folder, [package])
    before = contents(folder)
    assert channel.publish(folder, [package]).added == ()
    assert contents(folder) == before


def test_packages_that_were_copied_into_the_folder_are_indexed(folder: Path, tmp_path: Path) -> None:
    channel.publish(folder, [make(tmp_path)])
    package = make(folder / SUBDIR, "copied")
    assert channel.publish(folder, []).added == (f"{SUBDIR}/{package.name}",)
    assert channel.publish(folder, [package]).added == ()
    assert audit.check(folder, RECIPES) == 2


def test_nothing_leaves_a_channel(folder: Path, tmp_path: Path) -> None:
    package = make(tmp_path)
    channel.publish(folder, [package])
    (folder / SUBDIR / package.name).unlink()
    before = contents(folder)
    with pytest.raises(BadChannel, match="put it back, since users may have locked it"):
        channel.publish(folder, [make(tmp_path, "other")])
    assert contents(folder) == before


@pytest.mark.parametrize("kept", [0, 100, -20])
def test_truncated_package(folder: Path, tmp_path: Path, kept: int) -> None:
    channel.publish(folder, [make(tmp_path, "sound")])
    package = make(tmp_path)
    package.write_bytes(package.read_bytes()[:kept])
    before = contents(folder)
    with pytest.raises(DamagedPackage, match="truncated"):
        channel.publish(folder, [make(tmp_path, "other"), package])
    assert contents(folder) == before


def test_corrupt_package(folder: Path, tmp_path: Path) -> None:
    package = make(tmp_path, files={"share/data": os.urandom(100_000)})
    data = bytearray(package.read_bytes())
    data[len(data) // 2] ^= 1
    package.write_bytes(data)
    with pytest.raises(DamagedPackage, match="damaged"):
        channel.publish(folder, [package])
    assert not list(folder.glob("linux-*/*.conda"))


def test_a_folder_that_is_no_channel(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=f"there is no channel in {folder}: name packages that go there"):
        channel.publish(folder, [])
    assert not folder.exists()
    package = make(tmp_path)
    channel.publish(folder, [package])
    before = contents(folder)
    for packages in ([], [package]):
        with pytest.raises(BadChannel, match="for one platform of a channel: give the one above"):
            channel.publish(folder / SUBDIR, packages)
    assert contents(folder) == before


def test_no_package_at_all(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        channel.publish(folder, [tmp_path / "none-1-0.conda"])
    misnamed = make(tmp_path).rename(tmp_path / "other-1.0-0.conda")
    with pytest.raises(DamagedPackage, match="says that it is small-1.0-0"):
        channel.publish(folder, [misnamed])
    stray = tmp_path / "stray.conda"
    stray.write_bytes(b"")
    with pytest.raises(DamagedPackage, match="not the name of a conda package"):
        channel.publish(folder, [stray])


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("about", ["odd"]),
        ("run_exports", ["odd"]),
        ("index", None),
        ("paths", {"paths": [{"file_mode": "text"}]}),
        ("paths", {"paths": {"_path": "share"}}),
    ],
)
def test_a_description_of_another_form(folder: Path, tmp_path: Path, name: str, table: object) -> None:
    index = {"name": "odd", "version": "1.0", "build": "0", "build_number": 0, "subdir": SUBDIR, "depends": []}
    package = tmp_path / "odd-1.0-0.tar.bz2"
    with tarfile.open(package, "w:bz2") as tar:
        for file, content in {"index": index, name: table}.items():
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(f"info/{file}.json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(DamagedPackage, match=f"an info/{name}.json that is not as it has to be"):
        channel.publish(folder, [package])
    assert not list(folder.glob("*/*.tar.bz2"))


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_what_is_called_like_a_package_but_is_no_file(folder: Path, tmp_path: Path, kind: str) -> None:
    channel.publish(folder, [make(tmp_path)])
    odd, before = folder / SUBDIR / "odd-1.0-0.conda", contents(folder)
    if kind == "folder":
        odd.mkdir()
    else:
        odd.symlink_to(tmp_path / "none")
    with pytest.raises(BadChannel, match=f"{SUBDIR}/{odd.name} is no file: remove it"):
        channel.publish(folder, [make(tmp_path, "other")])
    assert contents(folder) == before


def test_same_name_with_other_contents(folder: Path, tmp_path: Path) -> None:
    channel.publish(folder, [make(tmp_path / "first")])
    other = make(tmp_path / "second", files={"share/small.txt": b"other\n"})
    before = contents(folder)
    with pytest.raises(PackageConflict, match="another build number"):
        channel.publish(folder, [other])
    shutil.copyfile(other, folder / SUBDIR / other.name)
    with pytest.raises(PackageConflict, match="not the one that was published"):
        channel.publish(folder, [])
    assert contents(folder)[f"{SUBDIR}/repodata.json"] == before[f"{SUBDIR}/repodata.json"]
    with pytest.raises(BadChannel, match="the index says"):
        audit.check(folder, RECIPES)


def test_what_is_refused_leaves_no_folder_of_its_platform(folder: Path, tmp_path: Path) -> None:
    channel.publish(folder, [make(tmp_path, subdir="noarch")])
    with pytest.raises(NoSuchFile):
        channel.publish(folder, [make(tmp_path), tmp_path / "none-1-0.conda"])
    assert not (folder / SUBDIR).exists()
    assert audit.check(folder, RECIPES) == 1


def test_wrong_subdir(folder: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "linux-ppc64le"
    wrong.mkdir()
    package = make(tmp_path, subdir="linux-aarch64").rename(wrong / "small-1.0-0.conda")
    with pytest.raises(WrongSubdir, match="is for linux-aarch64, but lies in linux-ppc64le"):
        channel.publish(folder, [package])
    with pytest.raises(WrongSubdir, match="for Linux only"):
        channel.publish(folder, [make(tmp_path / "mac", subdir="osx-arm64")])
    (folder / SUBDIR).mkdir(parents=True)
    shutil.copyfile(package, folder / SUBDIR / package.name)
    with pytest.raises(WrongSubdir, match="move it there"):
        channel.publish(folder, [])


def test_two_runs_take_turns(folder: Path, tmp_path: Path) -> None:
    packages = [make(tmp_path, f"p{number}") for number in range(6)]
    words = [sys.executable, "-m", "lmsbuild", "channel", "publish", folder]
    runs = [subprocess.Popen([*words, *packages[start::2]], stdout=subprocess.PIPE, text=True) for start in (0, 1)]
    printed = [line for run in runs for line in run.communicate(timeout=60)[0].splitlines()]
    assert [run.returncode for run in runs] == [0, 0]
    assert sorted(printed) == sorted(f"{SUBDIR}/{package.name}" for package in packages)
    assert audit.check(folder, RECIPES) == 6


# Publishes into copies of a channel, each by a process that is killed at its next rename; prints how each ended.
STOP = """
import os, shutil, signal, sys
from pathlib import Path
from lmsbuild.channel import channel
folder, place, *packages = sys.argv[1:]
replace = os.replace
def publish(copy, left):
    def stopped(source, target):
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        replace(source, target)
    os.replace = stopped
    try:
        channel.publish(copy, map(Path, packages))
        os._exit(0)
    finally:
        os._exit(1)
code = None
while code != 0:
    renames = 0 if code is None else renames + 1
    copy = Path(place, str(renames))
    shutil.copytree(folder, copy)
    child = os.fork()
    if not child:
        publish(copy, renames)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    assert code in (0, -signal.SIGKILL)
"""


def test_killed_before_each_rename_the_channel_stays_valid(folder: Path, tmp_path: Path) -> None:
    """The renames are all that a client can see."""
    channel.publish(folder, [make(tmp_path, "old")])
    packages = [make(tmp_path, "new", files={"share/data": b"x" * 1000}), make(tmp_path, "noarch", subdir="noarch")]
    attest(packages[0], bundle(packages[0], "one"))
    words = [sys.executable, "-c", STOP, folder, tmp_path / "copies", *packages]
    codes = subprocess.run(words, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout.split()
    assert len(codes) > 15
    for number, code in enumerate(codes):
        copy = tmp_path / "copies" / str(number)
        for subdir in (SUBDIR, "noarch"):
            for name, record in channel.read_index(copy / subdir).items():
                assert hashlib.sha256((copy / subdir / name).read_bytes()).hexdigest() == record["sha256"]
            channel.unpacked_index((copy / subdir / "repodata.json.zst").read_bytes())
        assert "old-1.0-0.conda" in channel.read_index(copy / SUBDIR)
        if code != "0":
            channel.publish(copy, packages)
        assert audit.check(copy, RECIPES) == 3
        assert served(copy, packages[0])
        assert not list(copy.rglob(".lmsbuild-*conda*"))


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that this process may not write to, as any user, while its user id is another one."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def _without_rights(folder: Path) -> Iterator[None]:
    """Runs the block as a user who may not write below the folder."""
    owner = os.geteuid()
    if owner == 0:
        os.seteuid(UNPRIVILEGED)  # for whom the permissions count
    else:
        for place in folder.rglob("*"):
            place.chmod(place.stat().st_mode & 0o555)
    try:
        yield
    finally:
        if owner == 0:
            os.seteuid(owner)
        else:
            for place in folder.rglob("*"):
                place.chmod(0o755)


def test_read_only_channel(read_only: Path, tmp_path: Path) -> None:
    package = make(read_only / "new", "new")
    channel.publish(read_only / "channel", [make(tmp_path)])
    before = contents(read_only / "channel")
    refused = pytest.raises(OutputNotWritable, match="cannot write to the channel")
    with _without_rights(read_only / "channel"), refused:
        channel.publish(read_only / "channel", [package])
    assert contents(read_only / "channel") == before


def test_check_finds_what_was_changed(folder: Path, tmp_path: Path) -> None:
    package = make(tmp_path, "one")
    channel.publish(folder, [package, make(tmp_path, "two", depends=["one >=2.0", "elsewhere"])])
    channel.publish(folder, [make(tmp_path, "three", depends=['one[version=">=2.0"]'])])
    with pytest.raises(BadChannel) as caught:
        audit.check(folder, RECIPES)
    for text in ("'one >=2.0'", "'one[version=\">=2.0\"]'"):
        assert f"requires {text}, of which the channel has only 1.0 0" in str(caught.value)
    channel.publish(folder, [make(tmp_path, "one", "2.1")])
    assert audit.check(folder, RECIPES) == 4
    (folder / SUBDIR / "repodata.json.zst").write_bytes(zstandard.compress(b"{}"))
    with pytest.raises(BadChannel, match=r"repodata.json.zst is not what repodata.json says"):
        audit.check(folder, RECIPES)
    (folder / SUBDIR / package.name).unlink()
    with pytest.raises(BadChannel, match="the file is missing"):
        audit.check(folder, RECIPES)


def test_check_of_no_channel(tmp_path: Path) -> None:
    with pytest.raises(BadChannel, match="is no channel"):
        audit.check(tmp_path, RECIPES)


def test_damaged_index(folder: Path, tmp_path: Path) -> None:
    channel.publish(folder, [make(tmp_path)])
    (folder / SUBDIR / "repodata.json").write_text("{")
    with pytest.raises(BadChannel, match="cannot be read"):
        channel.publish(folder, [])


@pytest.mark.parametrize(
    "table", [{"packages.conda": []}, {"packages": {"a-1-0.tar.bz2": 1}}, {"packages": {"a-1-0.tar.bz2": {"size": 1}}}]
)
def test_an_index_of_another_form(folder: Path, tmp_path: Path, table: object) -> None:
    channel.publish(folder, [make(tmp_path)])
    (folder / SUBDIR / "repodata.json").write_text(json.dumps(table))
    with pytest.raises(BadChannel, match="is no index: put back the one that was published"):
        channel.publish(folder, [])
    with pytest.raises(BadChannel, match="is no index: put back the one that was published"):
        audit.check(folder, RECIPES)


@pytest.mark.parametrize("text", ["{", "[]", '{"small-1.0-0.conda": {"stamp": [1, 2]}}', '{"small-1.0-0.conda": 1}'])
def test_what_is_remembered_is_found_out_again(folder: Path, tmp_path: Path, text: str) -> None:
    channel.publish(folder, [make(tmp_path)])
    before, seen = contents(folder), folder / SUBDIR / SEEN
    seen.write_text(text)
    assert channel.publish(folder, []).hashed == 1
    assert contents(folder) == before


def test_a_package_that_cannot_be_read(read_only: Path, tmp_path: Path) -> None:
    folder, package = read_only / "channel", make(tmp_path)
    channel.publish(folder, [package])
    (folder / SUBDIR / package.name).chmod(0)
    with _without_rights(folder), pytest.raises(BadChannel, match=f"{package.name} cannot be read: Permission denied"):
        audit.check(folder, RECIPES)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["-Wl,-rpath,$ORIGIN/../lib"], None),
        (["-Wl,-rpath,/opt/cuda/lib64"], "looks for libraries in /opt/cuda/lib64, outside the environment"),
        (["-Wl,-rpath,$ORIGIN/../../lib"], "outside the environment"),
    ],
)
def test_check_of_library_paths(folder: Path, tmp_path: Path, words: list[str], fault: str | None) -> None:
    library = tmp_path / "libsmall.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "/dev/null", *words, "-o", library], check=True)
    channel.publish(folder, [make(tmp_path, files={"lib/libsmall.so": library.read_bytes()})])
    if fault is None:
        assert audit.check(folder, RECIPES) == 1
    else:
        with pytest.raises(BadChannel, match=fault):
            audit.check(folder, RECIPES)


def test_check_of_machines(folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "libsmall.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-o", library], check=True)
    other = "linux-ppc64le" if SUBDIR != "linux-ppc64le" else "linux-64"
    for subdir in (other, "noarch"):
        channel.publish(folder / subdir, [make(tmp_path, files={"lib/l.so": library.read_bytes()}, subdir=subdir)])
        with pytest.raises(BadChannel, match="lib/l.so is for EM_"):
            audit.check(folder / subdir, RECIPES)
