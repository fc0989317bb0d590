"""Making the patched wheel, on the stand-in: what is in it, and what is refused."""

from __future__ import annotations

import csv
import ctypes
import io
import os
import resource
import shutil
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

import synthetic
from lmsbuild.catalogue.catalogue import Release
from lmsbuild.elf import symbols
from lmsbuild.errors import (
    BadSources,
    CompilerFailed,
    DamagedWheel,
    Failure,
    NoCompiler,
    NoSpace,
    NoSuchFile,
    OutputNotWritable,
    PatchMismatch,
    TamperedWheel,
    UnsafeMember,
    WrongHash,
    WrongPlatform,
    WrongVersion,
)
from lmsbuild.fetch import download
from lmsbuild.graft import graft
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile, file_sha256, record_hash
from synthetic import ABI, PLATFORM, Member
from workshop import Workshop

NEW_INFO = "torch-2.13.0+cpu.lms1.dist-info"
Members = dict[str, Member]


def _read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("line", ["Tag: foo", "tag:a-b", "Tag: a-b-c-d", "Tag: a-b-c\x0bd-e-f", "Tag: a"])
def test_a_line_of_wheel_that_is_no_tag_is_refused(line: str) -> None:
    """Also below an empty line, where what reads headers sees none."""
    identity = graft.Identity(Version("1"), "a-1.dist-info", "a-1.dist-info", "a-1-py3-none-any.whl", ("any",))
    with pytest.raises(DamagedWheel, match="is no tag"):
        graft._edit_tags(f"Wheel-Version: 1.0\n\n{line}\n".encode(), identity)
    assert graft._edit_tags(b"X: 1\nTag:cp311-cp311-linux\n", identity) == b"X: 1\nTag: cp311-cp311-any\n"


def test_the_patched_wheel_holds_what_it_should(workshop: Workshop, stand_in: Members) -> None:
    made = graft.build(workshop.options())
    assert made.parent == workshop.output
    assert made.name.startswith(f"torch-2.13.0+cpu.lms1-{ABI}-{ABI}-")
    assert [path.name for path in workshop.output.iterdir()] == [made.name]
    files = _read(made)
    unchanged = {"torch/bin/protoc", "torch/include/ATen/ATen.h", "torch/große Datei.txt", "torch/lib/libc10.so"}
    for name in unchanged:
        assert files[name] == stand_in[name].data
    assert files["torch/version.py"] == b"__version__ = '2.13.0+cpu.lms1'\ndebug = False\n"
    assert b'    "_export",\n    "lms",\n' in files["torch/__init__.py"]
    assert files["torch/lms/__init__.py"] == b"def enable():\n    pass\n"
    assert files[f"{NEW_INFO}/METADATA"] == (
        b"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu.lms1\n\nVersion: none\n"
    )
    assert not [name for name in files if name.startswith(("aten/", "test/", synthetic.DIST_INFO))]
    assert list(files)[-1] == f"{NEW_INFO}/RECORD"


def test_record_lists_every_file_with_its_hash_and_size(workshop: Workshop) -> None:
    made = graft.build(workshop.options())
    files = _read(made)
    rows = list(csv.reader(io.StringIO(files[f"{NEW_INFO}/RECORD"].decode())))
    assert [row[0] for row in rows] == list(files)
    for name, digest, size in rows[:-1]:
        assert (digest, size) == (record_hash(files[name]), str(len(files[name])))
    assert rows[-1] == [f"{NEW_INFO}/RECORD", "", ""]
    with WheelFile(made) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_permissions_and_dates_are_kept_and_new_files_get_sensible_ones(workshop: Workshop) -> None:
    made = graft.build(workshop.options())
    with zipfile.ZipFile(made) as archive:
        modes = {info.filename: stat.S_IMODE(info.external_attr >> 16) for info in archive.infolist()}
        assert {info.date_time for info in archive.infolist()} == {synthetic.DATE}
    assert modes["torch/bin/protoc"] == 0o755
    assert modes["torch/version.py"] == 0o644
    assert modes["torch/lms/__init__.py"] == 0o644
    assert modes["torch/lib/libtorch_lms.so"] == 0o755
    assert modes[f"{NEW_INFO}/RECORD"] == 0o664


def test_the_library_runs_from_where_it_lies(workshop: Workshop) -> None:
    made = graft.build(workshop.options())
    with zipfile.ZipFile(made) as archive:
        archive.extractall(workshop.folder / "x")
    library = ctypes.CDLL(str(workshop.folder / "x/torch/lib/libtorch_lms.so"))
    assert library.lms_torch_cpu_enabled() == 42
    library.lms_where.restype = ctypes.c_char_p
    assert library.lms_where() == b"./aten/src/ATen/LmsPager.cpp"


@pytest.mark.parametrize("stated", [[PLATFORM], ["linux_x86_64"], ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]])
def test_the_tags_in_the_name_and_in_the_wheel_agree(workshop: Workshop, stand_in: Members, stated: list[str]) -> None:
    """Also where the official wheel states another platform than its name."""
    lines = "".join(f"Tag: {ABI}-{ABI}-{platform}\n" for platform in stated)
    wheel_file = Member(f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n{lines}\n".encode())
    synthetic.write_wheel(workshop.base, {**stand_in, f"{synthetic.DIST_INFO}/WHEEL": wheel_file})
    made = graft.build(workshop.options())
    tag = f"Tag: {ABI}-{ABI}-{made.stem.split('-')[-1]}\n"
    assert _read(made)[f"{NEW_INFO}/WHEEL"].decode() == f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n{tag}\n"


@pytest.mark.parametrize(
    "need", [symbols.Need(17, "GLIBC_2.17"), symbols.Need(29, "GLIBC_2.29"), symbols.Need(None, "?")]
)
def test_the_platform_is_raised_when_the_library_needs_more(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], need: symbols.Need
) -> None:
    monkeypatch.setattr(symbols, "oldest_glibc", lambda versions, machine: need)
    made = graft.build(workshop.options())
    machine = synthetic.TARGET.machine
    expected = {17: PLATFORM, 29: f"manylinux_2_29_{machine}", None: f"linux_{machine}"}[need.minor]
    assert made.stem.endswith(f"-{expected}")
    assert f"Tag: {ABI}-{ABI}-{expected}\n" in _read(made)[f"{NEW_INFO}/WHEEL"].decode()
    assert (need.because in capsys.readouterr().err) is (need.minor != 17)


def test_the_same_inputs_give_the_same_bytes_anywhere(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = graft.build(workshop.options())
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    elsewhere = workshop.folder / "another folder" / "with a longer name"
    shutil.copytree(workshop.patches, elsewhere / "patches")
    options = replace(workshop.options(output=elsewhere / "dist"), patches=elsewhere / "patches")
    second = graft.build(options)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_a_relative_output_is_relative_to_where_the_tool_runs(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop.folder)
    made = graft.build(workshop.options(output=Path("dist")))
    assert made.parent == Path("dist")
    assert (workshop.folder / made).is_file()


def test_new_members_take_their_date_from_source_date_epoch(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = graft.build(workshop.options()).read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    made = graft.build(workshop.options())
    with zipfile.ZipFile(made) as archive:
        assert archive.getinfo("torch/lms/__init__.py").date_time == (2023, 11, 14, 22, 13, 20)
        assert archive.getinfo("torch/bin/protoc").date_time == synthetic.DATE
    assert made.read_bytes() != plain
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    with zipfile.ZipFile(graft.build(workshop.options())) as archive:
        assert archive.getinfo("torch/lms/__init__.py").date_time == (1980, 1, 1, 0, 0, 0)


def test_a_wheel_without_a_local_version_gets_one(workshop: Workshop, stand_in: Members) -> None:
    files = {
        name.replace("+cpu", ""): replace(member, data=member.data.replace(b"+cpu", b""))
        for name, member in stand_in.items()
    }
    plain = synthetic.write_wheel(workshop.folder / synthetic.wheel_name("2.13.0"), files)
    made = graft.build(workshop.options(base_wheel=plain))
    assert made.name.startswith(f"torch-2.13.0+lms1-{ABI}-")
    assert b"Version: 2.13.0+lms1\n" in _read(made)["torch-2.13.0+lms1.dist-info/METADATA"]


@pytest.mark.parametrize(
    ("name", "failure", "message"),
    [
        (synthetic.wheel_name("2.12.0+cpu"), WrongVersion, r"torch 2\.12\.0\+cpu, but v2\.13\.0 needs torch 2\.13\.0"),
        (synthetic.wheel_name(package="torchvision"), WrongVersion, "torchvision"),
        (synthetic.wheel_name("2.13.0+cpu.lms1"), WrongVersion, "patched already"),
        (synthetic.wheel_name(platform="win_amd64"), WrongPlatform, "win_amd64"),
        (synthetic.wheel_name(platform="macosx_11_0_arm64"), WrongPlatform, "macosx_11_0_arm64"),
        (synthetic.wheel_name(platform="manylinux_2_28_s390x"), WrongPlatform, "s390x"),
        (synthetic.wheel_name(abi="cp39"), WrongPlatform, r"is for cp39.*pass --python 3\.9"),
    ],
)
def test_a_base_wheel_of_something_else_is_refused(
    workshop: Workshop, name: str, failure: type[Failure], message: str
) -> None:
    other = workshop.base.rename(workshop.folder / name)
    with pytest.raises(failure, match=message):
        graft.build(workshop.options(base_wheel=other))
    assert not workshop.output.exists()


@pytest.mark.parametrize(
    ("spoil", "failure"),
    [
        *(("truncated", DamagedWheel), ("tampered", TamperedWheel), ("outside", UnsafeMember)),
        *(("missing", NoSuchFile), ("a pipe", NoSuchFile)),
    ],
)
def test_a_bad_base_wheel_leaves_no_wheel(
    workshop: Workshop, stand_in: Members, spoil: str, failure: type[Failure]
) -> None:
    if spoil == "truncated":
        workshop.base.write_bytes(workshop.base.read_bytes()[:2000])
    elif spoil == "tampered":
        changed = Member(b"evil", listed=stand_in["torch/bin/protoc"].data)
        synthetic.write_wheel(workshop.base, {**stand_in, "torch/bin/protoc": changed})
    elif spoil == "outside":
        synthetic.write_wheel(workshop.base, {**stand_in, "../evil": Member(b"evil")})
    else:
        workshop.base.unlink()
        if spoil == "a pipe":
            os.mkfifo(workshop.base)
    with pytest.raises(failure):
        graft.build(workshop.options())
    assert not workshop.output.exists() or not list(workshop.output.iterdir())


def test_files_that_upstream_changed_after_record_are_taken_from_a_known_wheel_only(
    workshop: Workshop, stand_in: Members
) -> None:
    """As METADATA of torch 1.7.0 to 1.12.1, and a library of 1.9.1."""
    changed = {
        name: replace(stand_in[name], data=stand_in[name].data + b"added", listed=stand_in[name].data)
        for name in (f"{synthetic.DIST_INFO}/METADATA", "torch/bin/protoc")
    }
    synthetic.write_wheel(workshop.base, {**stand_in, **changed})
    with pytest.raises(TamperedWheel, match="METADATA|protoc"):
        graft.build(workshop.options())
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    with WheelFile(graft.build(workshop.options())) as wheel:
        assert wheel.read(f"{NEW_INFO}/METADATA").endswith(b"added")
        assert wheel.read("torch/bin/protoc").endswith(b"added")
        assert wheel.verify(lambda name: None, lambda done: None) == {}  # its own RECORD is right


@pytest.mark.parametrize("way", ["replaced", "written to"])
def test_a_base_wheel_that_changes_after_its_hash_changes_nothing(
    workshop: Workshop, stand_in: Members, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    evil = synthetic.write_wheel(workshop.folder / "evil", {**stand_in, "torch/bin/protoc": Member(b"evil", 0o755)})
    check = download.check_known

    def check_and_swap(release: Release, wheel: InputFile, private: Path | None = None) -> None:
        check(release, wheel, private)
        if way == "replaced":
            evil.rename(workshop.base)
        else:
            workshop.base.write_bytes(evil.read_bytes())

    monkeypatch.setattr(download, "check_known", check_and_swap)
    files = _read(graft.build(workshop.options()))
    assert _read(workshop.base)["torch/bin/protoc"] == b"evil"
    assert files["torch/bin/protoc"] == stand_in["torch/bin/protoc"].data


def test_a_base_wheel_that_the_catalogue_knows_otherwise_is_refused(workshop: Workshop) -> None:
    synthetic.write_sources(workshop.patches, {workshop.base.name: "1" * 64})
    with pytest.raises(WrongHash, match="1{64}"):
        graft.build(workshop.options())


def test_a_base_wheel_with_another_edited_file_is_refused(workshop: Workshop, stand_in: Members) -> None:
    synthetic.write_wheel(workshop.base, {**stand_in, "torch/__init__.py": Member(b"another release\n")})
    with pytest.raises(PatchMismatch, match=r"torch/__init__\.py"):
        graft.build(workshop.options())


def test_a_version_file_that_cannot_be_edited_is_refused(workshop: Workshop, stand_in: Members) -> None:
    synthetic.write_wheel(workshop.base, {**stand_in, "torch/version.py": Member(b"from x import __version__\n")})
    with pytest.raises(BadSources, match=r"version\.py"):
        graft.build(workshop.options())


def test_no_compiler_is_said_before_the_work(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompiler, match="no-such-compiler.*apt-get install g"):
        graft.build(workshop.options())
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(workshop.folder))
    with pytest.raises(NoCompiler, match=r"g\+\+ c\+\+ clang\+\+"):
        graft.build(workshop.options())
    assert not workshop.output.exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("#include <ATen/ATen.h>\n#warning careful\nint f() { return undeclared; }\n", r"LmsTorch\.cpp:3.*undeclared"),
        ("#include <ATen/none.h>\n", r"fatal error: ATen/none\.h"),
        ("void missing(); void f() { missing(); }\n", "undefined reference to .missing"),
    ],
)
def test_the_first_real_diagnostic_is_shown(workshop: Workshop, source: str, message: str) -> None:
    (workshop.patches / "src/pytorch/aten/src/ATen/LmsTorch.cpp").write_text(source)
    workshop.generate()
    with pytest.raises(CompilerFailed, match=message) as caught:
        graft.build(workshop.options())
    assert ".lmsbuild-" not in str(caught.value).split("undefined")[0]
    assert not list(workshop.output.iterdir())


def test_a_full_disk_is_said_and_leaves_nothing(workshop: Workshop) -> None:
    """A file size limit stands in for the full disk: it binds every user, root too."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(workshop.patches), str(workshop.base), str(workshop.output)],
        capture_output=True,
        text=True,
        env={**os.environ, "LMSBUILD_CACHE": str(workshop.cache)},
        check=False,
    )
    assert done.returncode == NoSpace.exit_code, done.stderr
    assert "no space left" in done.stderr
    assert not list(workshop.output.iterdir())


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from lmsbuild import cli, paths
from lmsbuild.fetch import download
from lmsbuild.graft import graft
from lmsbuild.wheel.input_file import InputFile
patches, base, output = sys.argv[1:]
paths.patches_folder = lambda: Path(patches)
write = graft._write
def limited(*words):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    write(*words)
graft._write = limited
sys.argv = ["lmsbuild", "pytorch", "v2.13.0", "--base-wheel", base, "--output", output]
cli.main()
"""


@pytest.mark.parametrize("size", ["8k", "32k", "48k", "64k"])
def test_a_really_full_disk_is_said_and_leaves_nothing(workshop: Workshop, size: str) -> None:
    """On small file systems of our own, which fill up at different stages, in different programs."""
    disk = workshop.folder / "disk"
    disk.mkdir()
    inside = f'mount -t tmpfs -o size={size} tmpfs "$0" && "$@"; code=$?; find "$0/dist" -mindepth 1; exit $code'
    words = [sys.executable, Path(__file__).with_name("drive.py"), workshop.patches, "0", "-"]
    words += ["pytorch", "v2.13.0", "--base-wheel", workshop.base, "--output", disk / "dist"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, disk, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "LMSBUILD_CACHE": str(workshop.cache), "TMPDIR": str(workshop.folder)},
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"needs the right to mount, which this machine withholds: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (NoSpace.exit_code, ""), done.stderr
    assert "no space left" in done.stderr


@pytest.mark.parametrize("kind", ["file", "below a file", "read-only"])
def test_an_output_that_cannot_be_written_is_said(workshop: Workshop, kind: str) -> None:
    file = workshop.folder / "file"
    file.write_text("x")
    # A folder of /proc is read-only for every user, root too.
    output = {"file": file, "below a file": file / "dist", "read-only": Path("/proc/self/dist")}[kind]
    with pytest.raises(OutputNotWritable, match="--output"):
        graft.build(workshop.options(output=output))
    assert file.read_text() == "x"


def test_a_finished_wheel_is_replaced_in_one_step(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    made = graft.build(workshop.options())
    whole = made.read_bytes()
    made.write_bytes(b"an older build")

    def fail(*words: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(NoSpace):
        patched.setattr(graft, "_write", fail)
        graft.build(workshop.options())
    assert made.read_bytes() == b"an older build"
    assert graft.build(workshop.options()).read_bytes() == whole


def test_limits_of_this_process_are_as_before() -> None:
    """The tests above set limits in processes of their own only."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
