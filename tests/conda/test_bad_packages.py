"""What a channel refuses of a package, before anything is written, and what a check finds of one that is there."""

from __future__ import annotations

import bz2
import json
import os
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import rattler
import zstandard

from lmsbuild import paths
from lmsbuild.channel import audit, channel, index, inspection
from lmsbuild.conda import archive
from lmsbuild.errors import BadChannel, DamagedPackage, Failure, OutputNotWritable, WrongSubdir
from lmsbuild.published import strict_json
from raw_packages import (
    DATA,
    INDEX,
    NAME,
    Row,
    build,
    build_old,
    conda,
    file,
    info,
    link,
    listed,
    other,
    package,
    parts,
    tables,
    tar,
)
from stand_ins import SUBDIR, make
from test_channel import contents

RECIPES = paths.recipes_folder()
SOUND = [file("lib/a.so.1"), link("lib/a.so", "a.so.1"), link("lib/b.so", "../lib/a.so"), link("lib64", "lib")]


def test_sound_packages() -> None:
    """Names that begin with ./, links among libraries and to other packages' files, folders, hard links."""
    rows = [*SOUND, link("bin/other", "../share/of-another-package"), other("empty", tarfile.DIRTYPE)]
    rows += [file("./share/dev-x2d\\x2d.unit"), link("share/deep/up", "../../lib/./a.so")]
    described, faults = inspection.inspect(package(build(rows)))
    assert faults == [] and described["index"] == INDEX
    old = [other("lib", tarfile.DIRTYPE), *rows, other("share/same", tarfile.LNKTYPE, "./lib/a.so.1")]
    told = tables(rows)
    told["paths"]["paths"] += listed([(old[-1][0], DATA)])
    told["paths"]["paths"][-1]["path_type"] = "hardlink"
    data = build_old(old, told)
    assert inspection.inspect(package(data, f"{NAME}.tar.bz2"))[1] == []
    halves = [bz2.compress(part) for part in (bz2.decompress(data)[:700], bz2.decompress(data)[700:])]
    assert inspection.inspect(package(b"".join(halves), f"{NAME}.tar.bz2"))[1] == []  # as pbzip2 writes it


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 1.0}, "says that it is|version 1.0, which is not a version"),
        ({"build_number": -1}, "build_number -1, which is not a whole number from 0"),
        ({"build_number": True}, "build_number True"),
        ({"build_number": "0"}, "build_number '0'"),
        ({"build_number": 1 << 63}, "build_number"),
        ({"depends": [1]}, r"depends \[1\], which is not a list of requirements"),
        ({"depends": "a"}, "depends 'a'"),
        ({"depends": None}, "depends None"),
        ({"depends": ["a >="]}, "depends"),
        ({"depends": ["*"]}, "depends"),
        ({"depends": ["https://elsewhere/raw-1-0.conda"]}, "depends"),
        ({"constrains": ["raw[url=https://elsewhere/raw-1-0.conda]"]}, "constrains"),
        ({"depends": ["a\nb"]}, "depends"),
        ({"constrains": ["a[build"]}, "constrains"),
        ({"constrains": {}}, "constrains {}"),
        ({"timestamp": 1.5}, "timestamp 1.5"),
        ({"timestamp": 1 << 62}, "timestamp"),
        ({"timestamp": "now"}, "timestamp 'now'"),
        ({"license": 1}, "license 1"),
        ({"license_family": []}, "license_family"),
        ({"noarch": "x"}, "noarch 'x', which is not one of"),
        ({"noarch": 1}, "noarch 1"),
        ({"arch": 1}, "arch 1"),
        ({"platform": {}}, "platform {}"),
        ({"features": []}, "features"),
        ({"track_features": [1]}, "track_features"),
        ({"subdir": 1}, "subdir 1"),
    ],
)
def test_fields_of_index_json(change: dict[str, object], said: str) -> None:
    with pytest.raises(DamagedPackage, match=f"{NAME}.conda (has an index.json with )?({said})"):
        inspection.sound(package(build(described=tables([], {**INDEX, **change}))))


@pytest.mark.parametrize("key", sorted(INDEX))
def test_a_field_that_lacks(key: str) -> None:
    stated = {name: value for name, value in INDEX.items() if name != key}
    with pytest.raises(DamagedPackage, match="says that it is|without"):
        inspection.sound(package(build(described=tables([], stated))))


@pytest.mark.parametrize("change", [{"purls": 1}, {"python_site_packages_path": 1}, {"extra_depends": 1}])
def test_a_field_that_only_the_client_knows(change: dict[str, object]) -> None:
    """The finished row is read as clients read it."""
    with pytest.raises(DamagedPackage, match="index.json that clients cannot read"):
        index.record(f"{NAME}.conda", {**INDEX, **change})


def test_a_channels_own_fields_are_not_taken_over() -> None:
    stated = {**INDEX, "attestations_sha256": "x", "url": "http://elsewhere", "fn": "../x", "channel": "y"}
    assert index.record(f"{NAME}.conda", stated) == INDEX


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run_exports": {"weak": [1]}}, "run_exports.json with weak"),
        ({"run_exports": {"strong": "a"}}, "run_exports.json with strong"),
        ({"about": {"summary": {}}}, "about.json with summary {}"),
        ({"link": {"noarch": {"type": "x"}}}, "link.json with noarch"),
        (
            {"link": {"noarch": {"type": "python", "entry_points": ["../x = a:b"]}}},
            "not a table with entry points like",
        ),
        ({"link": {"noarch": {"type": "python", "entry_points": ["a = b:c\n"]}}}, "link.json with noarch"),
        ({"link": {"noarch": {"type": "python", "entry_points": [1]}}}, "link.json with noarch"),
        ({"link": {"noarch": {"type": "generic"}, "package_metadata_version": "1"}}, "package_metadata_version '1'"),
        ({"paths": {"paths": []}}, "paths.json without paths_version"),
        ({"paths": {"paths": [], "paths_version": "abc"}}, "paths.json with paths_version 'abc'"),
        (
            {"paths": {"paths_version": 1, "paths": [{"_path": "a", "prefix_placeholder": ""}]}},
            "paths.json with prefix_placeholder ''",
        ),
        (
            {"paths": {"paths_version": 1, "paths": [{"_path": "a", "sha256_in_prefix": 5}]}},
            "paths.json with sha256_in_prefix 5",
        ),
        (
            {"paths": {"paths_version": 1, "paths": [{"_path": "a", "path_type": "x"}]}},
            "paths.json with path_type 'x' of a",
        ),
        ({"paths": {"paths_version": 1, "paths": [{"_path": "a", "sha256": "x"}]}}, "paths.json with sha256 'x'"),
        (
            {"paths": {"paths_version": 1, "paths": [{"_path": "a", "size_in_bytes": "1"}]}},
            "paths.json with size_in_bytes '1'",
        ),
        ({"paths": {"paths_version": 1, "paths": [{"_path": "a", "file_mode": {}}]}}, "paths.json with file_mode {}"),
        ({"paths": None}, "has no info/paths.json"),
        ({"index": None}, "has no info/index.json"),
        ({"paths": {"paths_version": 1, "paths": [{"_path": "a"}, {"_path": "a"}]}}, "lists a twice"),
        (
            {"paths": {"paths_version": 1, "paths": [{"_path": "info/index.json"}]}},
            "lists info/index.json, which is not installed",
        ),
    ],
)
def test_other_tables(change: dict[str, object], said: str) -> None:
    with pytest.raises(DamagedPackage, match=said):
        inspection.sound(package(build(described={**tables([]), **change})))


def test_programs_of_a_package_for_any_platform() -> None:
    points = ["pip3.11 = pip._internal.cli.main:main", "a-b=c:d"]
    described = {"link": {"noarch": {"type": "python", "entry_points": points}, "package_metadata_version": 1}}
    assert inspection.sound(package(build(described={**tables([]), **described})))["link"] == described["link"]


TEXT = json.dumps(INDEX)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("0,", "NaN,"), "NaN is no number"),
        (TEXT.replace("0,", "-Infinity,"), "-Infinity is no number"),
        (TEXT.replace("0,", "1e999,"), "too large"),
        (TEXT.replace("0,", "9" * 5000 + ","), "more than 19 digits"),
        (TEXT.replace('{"', '{"name": "raw", "', 1), "has 'name' twice"),
        (TEXT[:-1] + ', "x": ' + "[" * 100 + "]" * 100 + "}", "more than 64 levels"),
        (TEXT[:-1] + ', "x": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", "more than 64 levels"),
        (TEXT[:-1] + ', "x": "\\ud800"}', "surrogates not allowed"),
        (TEXT + " x", "Extra data"),
        ("\ufeff" + TEXT, "BOM"),
        (TEXT + " " * (1 << 20), "more than 1048576 bytes"),
        ("[]", "not as it has to be"),
    ],
)
def test_strict_json(text: str, said: str) -> None:
    with pytest.raises(DamagedPackage, match=rf"info/index.json.*{said}"):
        inspection.sound(package(build(described=tables([], text))))
    with pytest.raises(DamagedPackage):
        package(build(described=tables([], text))).description()


def test_json_that_is_not_utf8() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        strict_json.parse(b'{"name": "\xff"}')


OUTSIDE = "is no path inside of the environment"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([file("../../../etc/x")], OUTSIDE),
        ([file("/etc/x")], OUTSIDE),
        ([file("lib/../../x")], OUTSIDE),
        ([file("lib//x")], OUTSIDE),
        ([file("lib/\x1b[2Jx")], OUTSIDE),
        ([file("lib/x\ny")], OUTSIDE),
        ([file("x/" * 600 + "x")], OUTSIDE),
        ([link("lib/x", "/etc/passwd")], "leads out of the environment"),
        ([link("lib/x", "../../etc")], "leads out of the environment"),
        ([link("a/up", ".."), link("a/b/x", "../up/../etc")], "leads out of the environment"),
        ([link("a", "b/c"), link("x", "a/../../..")], "leads out of the environment"),
        ([link("x", "y"), link("y", "x")], "leads nowhere"),
        ([link("x", "")], "leads nowhere"),
        ([link("lib", "share"), file("lib/x")], "has lib, which is a link, and files below it"),
        ([file("lib/x"), file("lib")], "has lib, which is a file, and files below it"),
        ([other("dev/null", tarfile.CHRTYPE)], "is a device"),
        ([other("dev/sda", tarfile.BLKTYPE)], "is a device"),
        ([other("run/pipe", tarfile.FIFOTYPE)], "is a pipe"),
        ([other("odd", b"Z")], "is a member of an unknown kind"),
        ([file("bin/su", mode=0o4755)], r"bin/su, with which .* \(mode 4755\)"),
        ([file("bin/wall", mode=0o2755)], "mode 2755"),
        ([other("x", tarfile.LNKTYPE, "/etc/passwd")], "a hard link to /etc/passwd, which is no file before it"),
        ([other("x", tarfile.LNKTYPE, "../y")], "a hard link"),
        ([link("l", "share"), other("x", tarfile.LNKTYPE, "l")], "a hard link"),
        ([file("x"), file("x")], "has x twice"),
        ([file("x"), file("./x")], "has x twice"),
        ([file("info/index.json", json.dumps(INDEX).encode())], "has info/index.json twice"),
        ([file("info/other")], "has info/other in its part pkg"),
    ],
)
def test_members(rows: Sequence[Row], said: str) -> None:
    """In both formats; each is told in a line that a terminal can have."""
    for data, name in ((build(rows), f"{NAME}.conda"), (build_old(rows), f"{NAME}.tar.bz2")):
        if "in its part" in said and name.endswith(".tar.bz2"):
            continue
        _, faults = inspection.inspect(package(data, name))
        assert [fault for fault in faults if re.search(said, fault)]
        assert all(fault.isprintable() for fault in faults)


def test_a_name_that_is_no_text() -> None:
    (fault,) = inspection.inspect(package(build([file("lib/\udcff")], tables([]))))[1]
    assert fault == f"has 'lib/\\udcff', which {OUTSIDE}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, "lib/a is not what paths.json says"),
        ({"size_in_bytes": 1}, "lib/a is not what paths.json says"),
        ({"path_type": "softlink"}, "lib/a is a file, and paths.json says softlink"),
        ({"path_type": "directory"}, "lib/a is a file, and paths.json says directory"),
        ({"_path": "lib/b"}, "has lib/a, which its paths.json does not list"),
        ({"_path": "lib/b"}, "lacks lib/b, which its paths.json lists"),
    ],
)
def test_paths_json_that_disagrees(change: dict[str, object], said: str) -> None:
    rows = [file("lib/a")]
    told = tables(rows)
    told["paths"]["paths"][0] |= change
    assert said in inspection.inspect(package(build(rows, told)))[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all_parts: conda({**all_parts, "extra": b""}), "it has .*'extra', not metadata.json and"),
        (
            lambda all_parts: conda({k: v for k, v in all_parts.items() if k != "metadata.json"}),
            "not metadata.json and",
        ),
        (lambda all_parts: conda(all_parts, zipfile.ZIP_DEFLATED), "is compressed or encrypted"),
        (lambda all_parts: conda({**all_parts, "metadata.json": b"{}"}), "does not say which format"),
        (lambda all_parts: conda({**all_parts, "metadata.json": b"NaN"}), "does not say which format"),
        (lambda all_parts: conda({**all_parts, "metadata.json": b" " * (1 << 20)}), "has more than 65536 bytes"),
        (lambda all_parts: conda({**all_parts, "metadata.json": b'{"conda_pkg_format_version": 3}'}), "version 3"),
        (lambda all_parts: b"x" + conda(all_parts), "hidden in front of metadata.json"),
        (lambda all_parts: conda(all_parts) + b"x", "hidden in front of its directory or behind it"),
        (lambda all_parts: hidden(conda(all_parts)), "hidden in front of"),
        (lambda all_parts: conda(all_parts).replace(b"metadata.json", b"metadata.jsox", 1), "differ|another name"),
        (lambda all_parts: conda(all_parts)[:-30], "truncated"),
        (lambda all_parts: conda(each_part(all_parts, lambda part: part[:-1])), "is cut off"),
        (lambda all_parts: conda(each_part(all_parts, lambda part: part + b"x")), "hidden between its parts"),
        (lambda all_parts: conda(each_part(all_parts, lambda part: part[: len(part) // 2])), "cut off|damaged"),
        (lambda all_parts: conda(unpacked(all_parts, lambda part: part[:1024])), "end|cut off|does not"),
        (lambda all_parts: conda(unpacked(all_parts, lambda part: part + part)), "follows its last member"),
        (lambda all_parts: conda(unpacked(all_parts, lambda part: part.rstrip(b"\0") + b"\0" * 9)), "end"),
    ],
)
def test_archives_that_can_be_read_in_two_ways(change: Callable[[dict[str, bytes]], bytes], said: str) -> None:
    rows = [file("lib/a", os.urandom(3000))]
    all_parts = parts(tar(info(tables(rows))), tar(rows))
    assert inspection.inspect(package(conda(all_parts)))[1] == []
    with pytest.raises(DamagedPackage, match=said):
        inspection.sound(package(change(all_parts)))


def each_part(all_parts: dict[str, bytes], change: Callable[[bytes], bytes]) -> dict[str, bytes]:
    return {name: change(data) if name.endswith(".zst") else data for name, data in all_parts.items()}


def unpacked(all_parts: dict[str, bytes], change: Callable[[bytes], bytes]) -> dict[str, bytes]:
    return each_part(all_parts, lambda part: zstandard.compress(change(zstandard.decompress(part))))


def hidden(data: bytes) -> bytes:
    """An entry in front of the others that only who reads from the beginning finds."""
    entry = conda({"metadata.json": b"{}"})
    entry = entry[: entry.index(b"PK\1\2")]
    end = bytearray(data)
    rows = [at for at in range(len(data)) if data[at : at + 4] == b"PK\1\2"]
    for at in rows:
        end[at + 42 : at + 46] = struct.pack("<L", struct.unpack("<L", data[at + 42 : at + 46])[0] + len(entry))
    at = data.index(b"PK\5\6") + 16
    end[at : at + 4] = struct.pack("<L", struct.unpack("<L", data[at : at + 4])[0] + len(entry))
    return entry + bytes(end)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-10], "cut off"),
        (lambda data: data + b"x", "truncated, damaged"),
        (lambda data: b"", "cut off"),
        (lambda data: bz2.compress(bz2.decompress(data) + b"x"), "follows its last member"),
        (lambda data: bz2.compress(bz2.decompress(data) * 2), "follows its last member"),
    ],
)
def test_damaged_tar_bz2(change: Callable[[bytes], bytes], said: str) -> None:
    with pytest.raises(DamagedPackage, match=said):
        inspection.sound(package(change(build_old([file("x")])), f"{NAME}.tar.bz2"))


def test_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what unpacks to more than its size explains, nor a header without end."""
    monkeypatch.setattr(archive, "_SMALLEST_LIMIT", 4 << 20)
    huge = [file("x", bytes(5 << 20))]
    assert inspection.inspect(package(build([file("x", bytes(3 << 20))])))[1] == []
    for data, name in ((build(huge), f"{NAME}.conda"), (build_old(huge), f"{NAME}.tar.bz2")):
        with pytest.raises(DamagedPackage, match="unpacks to more than"):
            inspection.sound(package(data, name))
    with pytest.raises(DamagedPackage, match="header that is too large"):
        inspection.sound(package(build([file("x" * (3 << 20))])))
    sparse = tarfile.TarInfo("x")
    sparse.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(DamagedPackage):
        inspection.sound(package(build([(sparse, b"")])))


@pytest.mark.parametrize(
    "name",
    ["Raw-1.0-0", "ra w-1.0-0", "raw-1.0-0\x1b", "raw-1:0-0", "__raw-1.0-0", ".lmsbuild-raw-1.0-0", "raw-1.0", "-1-0"],
)
def test_names_that_are_no_packages(name: str) -> None:
    with pytest.raises(DamagedPackage, match="is not the name of a conda package") as caught:
        inspection.sound(package(build_old(), f"{name}.tar.bz2"))
    assert str(caught.value).isprintable()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    channel.publish(tmp_path / "channel", [make(tmp_path)])
    return tmp_path / "channel"


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (build(described=tables([], {**INDEX, "depends": [1]})), DamagedPackage),
        (build(described=tables([], TEXT.replace("0,", "NaN,"))), DamagedPackage),
        (build([file("../x")]), DamagedPackage),
        (build(described=tables([], {**INDEX, "subdir": "linux-../x"})), WrongSubdir),
        (build(described=tables([], {**INDEX, "subdir": 1})), WrongSubdir),
    ],
)
@pytest.mark.parametrize("lies_there", [True, False])
def test_what_is_refused_changes_nothing(
    folder: Path, tmp_path: Path, data: bytes, failure: type[Failure], lies_there: bool
) -> None:
    """Whether it was copied into the channel or is given: no byte of the channel differs."""
    path = (folder / SUBDIR if lies_there else tmp_path) / f"{NAME}.conda"
    path.write_bytes(data)
    before = contents(folder)
    with pytest.raises((failure, DamagedPackage) if lies_there else failure, match=NAME):
        channel.publish(folder, [] if lies_there else [make(tmp_path, "other"), path])
    assert contents(folder) == before
    rattler.RepoData.from_path(folder / SUBDIR / "repodata.json")


@pytest.mark.parametrize("data", [build([link("x", "/etc")]), build([file("x"), file("x")])])
def test_check_finds_them(folder: Path, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.conda").write_bytes(data)
    with monkeypatch.context() as patched:
        patched.setattr(inspection, "sound", lambda package: inspection.inspect(package)[0])
        channel.publish(folder, [tmp_path / f"{NAME}.conda"])
    with pytest.raises(BadChannel, match=f"{SUBDIR}/{NAME}.conda: has x"):
        audit.check(folder, RECIPES)


def test_check_tells_of_all_that_is_wrong(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broken ELF file, and of what else is wrong with the package."""
    (tmp_path / f"{NAME}.conda").write_bytes(build([file("lib/a.so", b"\x7fELF"), link("x", "/etc")]))
    with monkeypatch.context() as patched:
        patched.setattr(inspection, "sound", lambda package: inspection.inspect(package)[0])
        channel.publish(folder, [tmp_path / f"{NAME}.conda"])
    with pytest.raises(BadChannel, match=r"has 2 faults:\n.*lib/a.so is .*\n.*has x, a link to /etc"):
        audit.check(folder, RECIPES)


def test_what_is_named_like_our_own_files_is_refused_and_not_deleted(folder: Path) -> None:
    """But what a killed run of ours left is removed."""
    odd = [
        folder / SUBDIR / name for name in (".lmsbuild-raw-1.0-0.conda", ".lmsbuild-note", f".lmsbuild-{'g' * 32}.part")
    ]
    left = folder / SUBDIR / f".lmsbuild-{'a' * 32}.part"
    for path in (*odd, left):
        path.write_bytes(b"mine")
    with pytest.raises(DamagedPackage, match=r"\.lmsbuild-raw-1.0-0.conda is not the name of a conda package"):
        channel.publish(folder, [])
    assert all(path.read_bytes() == b"mine" for path in odd) and not left.exists()
    odd[0].unlink()
    assert channel.publish(folder, []).known == 1


def test_a_pipe_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / f"{NAME}.conda"
    os.mkfifo(pipe)
    with pytest.raises(DamagedPackage, match="cannot be read: it is no file, but a folder, pipe or device"):
        channel.publish(folder, [pipe])
    os.mkfifo(folder / SUBDIR / f"{NAME}.conda")
    with pytest.raises(BadChannel, match=f"{NAME}.conda is no file: remove it"):
        channel.publish(folder, [])
    with pytest.raises(BadChannel, match=f"{NAME}.conda is not in the index"):
        audit.check(folder, RECIPES)
    for name in ("repodata.json", "repodata.json.zst", "run_exports.json"):
        (folder / SUBDIR / name).unlink()
        os.mkfifo(folder / SUBDIR / name)
        with pytest.raises(BadChannel, match=rf"{name}.* cannot be read"):
            audit.check(folder, RECIPES)
        (folder / SUBDIR / f"{NAME}.conda").unlink(missing_ok=True)
        (folder / SUBDIR / name).unlink()
        channel.publish(folder, [])


def test_a_folder_of_a_platform_that_is_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "linux-s390x").symlink_to(tmp_path / "elsewhere")
    for act in (lambda: channel.publish(folder, []), lambda: audit.check(folder, RECIPES)):
        with pytest.raises(BadChannel, match="linux-s390x is a link, and packages are written there"):
            act()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_swapped_while_it_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that was validated is published, whatever the path leads to by then."""
    given, digest = make(tmp_path, "other"), channel.digest
    good = given.read_bytes()

    def swap(*words: object) -> channel.Digest:
        found = digest(*words)  # type: ignore[arg-type]
        given.unlink()
        given.write_bytes(b"bad")
        return found

    monkeypatch.setattr(channel, "digest", swap)
    channel.publish(folder, [given])
    assert (folder / SUBDIR / given.name).read_bytes() == good
    assert audit.check(folder, RECIPES) == 2


def test_what_is_known_by_its_hash_is_not_looked_at_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when what was remembered of it is gone."""
    before = contents(folder)
    monkeypatch.setattr(inspection, "sound", lambda package: pytest.fail("it was"))
    channel.publish(folder, [])
    os.utime(folder / SUBDIR / "small-1.0-0.conda")
    channel.publish(folder, [tmp_path / "small-1.0-0.conda"])
    (folder / SUBDIR / "lmsbuild-index.json").unlink()
    channel.publish(folder, [])
    before.pop(f"{SUBDIR}/lmsbuild-index.json")  # which has the file's date
    assert before.items() <= contents(folder).items()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("repodata.json", b"[" * 100_000),
        ("repodata.json", b'{"packages": NaN}'),
        ("repodata.json", b'{"packages.conda": {"../x-1-0.conda": {"size": 1, "sha256": "' + b"0" * 64 + b'"}}}'),
        ("repodata.json.zst", b"x"),
        ("repodata.json.zst", zstandard.compress(bytes(1 << 24))),
        ("repodata.json.zst", zstandard.compress(b"{}")[:-1]),
        ("run_exports.json", b"[]"),
        ("run_exports.json", b"\xff"),
        ("current_repodata.json", b"{" * 100_000),
        ("../channeldata.json", b"1"),
    ],
)
def test_check_of_malformed_files(folder: Path, name: str, data: bytes) -> None:
    (folder / SUBDIR / name).write_bytes(data)
    with pytest.raises(BadChannel, match=Path(name).name):
        audit.check(folder, RECIPES)


def test_a_folder_in_the_place_of_a_file_leaves_nothing_behind(folder: Path) -> None:
    (folder / SUBDIR / "lmsbuild-index.json").unlink()
    (folder / SUBDIR / "lmsbuild-index.json").mkdir()
    with pytest.raises(OutputNotWritable):
        channel.publish(folder, [])
    assert not list(folder.rglob("*.part"))


def test_check_of_a_row_that_no_client_can_read(folder: Path) -> None:
    path = folder / SUBDIR / "repodata.json"
    path.write_text(path.read_text().replace('"depends": []', '"depends": [1]'))
    with pytest.raises(BadChannel, match="no client can read") as caught:
        audit.check(folder, RECIPES)
    assert "says depends [], the index says [1]" in str(caught.value)
    with pytest.raises(BadChannel, match="`lmsbuild channel repair`"):
        channel.publish(folder, [])
