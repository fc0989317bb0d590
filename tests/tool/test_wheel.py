"""Reading a wheel and checking it against its RECORD."""

from __future__ import annotations

import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
from lmsbuild.errors import DamagedWheel, Failure, NoSuchFile, TamperedWheel, UnsafeMember
from lmsbuild.wheel.wheel import WheelFile
from synthetic import DIST_INFO, Member

Members = dict[str, Member]


def _verify(path: Path) -> int:
    seen = [0]
    with WheelFile(path) as wheel:
        wheel.verify(lambda name: None, lambda done: seen.__setitem__(0, done))
    return seen[0]


def _wheel(folder: Path, files: Members, extra: str = "") -> Path:
    return synthetic.write_wheel(folder / synthetic.wheel_name(), files, extra)


def test_a_sound_wheel_passes_and_is_unpacked_where_asked(tmp_path: Path, stand_in: Members) -> None:
    path = _wheel(tmp_path, stand_in)
    with WheelFile(path) as wheel:
        wheel.verify(lambda name: tmp_path / "x" / name if name.startswith("torch/lib/") else None, lambda done: None)
        assert wheel.dist_info == DIST_INFO
    unpacked = {file.relative_to(tmp_path / "x").as_posix() for file in (tmp_path / "x").rglob("*") if file.is_file()}
    assert unpacked == {"torch/lib/libc10.so", "torch/lib/libtorch_cpu.so"}
    assert (tmp_path / "x/torch/lib/libc10.so").read_bytes() == stand_in["torch/lib/libc10.so"].data
    assert _verify(path) == sum(len(member.data) for member in stand_in.values())


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_wheel_is_refused(tmp_path: Path, stand_in: Members, keep: float) -> None:
    path = _wheel(tmp_path, stand_in)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DamagedWheel, match="download it again"):
        _verify(path)


def test_a_flipped_bit_anywhere_in_a_member_is_found(tmp_path: Path, stand_in: Members) -> None:
    path = _wheel(tmp_path, stand_in)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("torch/version.py")
    start = info.header_offset + 30 + len(info.filename)
    for position in range(start, start + info.compress_size - 1):  # the last byte may hold unused bits
        data = bytearray(whole)
        data[position] ^= 0x10
        path.write_bytes(data)
        with pytest.raises((DamagedWheel, TamperedWheel), match=r"torch/version\.py"):
            _verify(path)


def test_a_changed_file_is_refused(tmp_path: Path, stand_in: Members) -> None:
    changed = replace(stand_in["torch/__init__.py"], data=b"import evil\n", listed=stand_in["torch/__init__.py"].data)
    path = _wheel(tmp_path, {**stand_in, "torch/__init__.py": changed})
    with pytest.raises(TamperedWheel, match=r"torch/__init__\.py.*RECORD"):
        _verify(path)


def test_a_file_that_record_does_not_list_is_refused(tmp_path: Path, stand_in: Members) -> None:
    path = _wheel(tmp_path, stand_in)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("torch/extra.py", "import evil\n")
    with pytest.raises(TamperedWheel, match=r"torch/extra\.py"):
        _verify(path)


def test_a_file_that_record_lists_without_a_hash_is_refused(tmp_path: Path, stand_in: Members) -> None:
    path = _wheel(tmp_path, stand_in, extra="torch/extra.py,,\n")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("torch/extra.py", "import evil\n")
    with pytest.raises(TamperedWheel, match=r"torch/extra\.py"):
        _verify(path)


def test_a_missing_file_is_refused(tmp_path: Path, stand_in: Members) -> None:
    path = _wheel(tmp_path, stand_in, extra="torch/gone.py,sha256=abc,1\n")
    with pytest.raises(DamagedWheel, match=r"torch/gone\.py"):
        _verify(path)


def test_an_unreadable_record_is_refused(tmp_path: Path, stand_in: Members) -> None:
    path = _wheel(tmp_path, stand_in, extra="only one field\n")
    with pytest.raises(TamperedWheel, match="RECORD"):
        _verify(path)


@pytest.mark.parametrize(
    "name", ["../evil.py", "/evil.py", "torch/../../evil.py", "torch\\..\\evil.py", "torch/../x.py"]
)
def test_names_that_lead_out_of_the_wheel_are_refused(tmp_path: Path, stand_in: Members, name: str) -> None:
    path = _wheel(tmp_path, {**stand_in, name: Member(b"evil")})
    with pytest.raises(UnsafeMember, match="evil|x.py"):
        _verify(path)


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../../../outside"])
def test_links_that_lead_out_of_the_wheel_are_refused(tmp_path: Path, stand_in: Members, target: bytes) -> None:
    path = _wheel(tmp_path, {**stand_in, "torch/lib/link": Member(target, 0o777, kind=stat.S_IFLNK)})
    with pytest.raises(UnsafeMember, match="torch/lib/link"):
        _verify(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused(tmp_path: Path, stand_in: Members) -> None:
    path = _wheel(tmp_path, stand_in)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("torch/version.py", "__version__ = 'evil'\n")
    with pytest.raises(TamperedWheel, match="twice"):
        _verify(path)


@pytest.mark.parametrize(
    ("name", "content", "failure"),
    [
        ("torch.whl", b"", DamagedWheel),
        ("torch-2.13.0-cp311-cp311-linux_x86_64.whl", b"no archive", DamagedWheel),
        ("torch-2.13.0-cp311-cp311-linux_x86_64.whl", None, NoSuchFile),
    ],
)
def test_what_is_no_wheel_is_refused(tmp_path: Path, name: str, content: bytes | None, failure: type[Failure]) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(failure, match="torch"):
        WheelFile(path)
