"""Changes to real inputs: of bytes anywhere, and of what a zip archive, a JSON or TOML file or a repository consists of."""

from __future__ import annotations

import copy
import io
import os
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

INTEGERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
NAMES = (
    *(
        "../../../escape",
        "/tmp/absolute",
        ".",
        "..",
        "a//b",
        "./a",
        "a/./b",
        "con\\trol",
        "nul\0byte",
        "new\nline",
        "\x1b[31m",
    ),
    *("x" * 300, "torch", "torch/__init__.py/x", "TORCH/__INIT__.PY", "\udcff", "-rf", ":x:", "[bold]"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1 << 80, 1.5, float("nan"), float("inf"), "", "x", "\0", "\ud800", "../x", "a" * 70_000),
    *([], [1], [[]], {}, {"a": 1}, ["x"] * 1000, "1..2", "python >=", "{{ x }}", "0" * 64),
)
TOML = (
    *("1", "-1", "1.5", "nan", "true", "[]", "{}", '""', '"../x"', "'''", "2020-01-01", "[{ a = 1 }]", '"\\ud800"'),
    *("99999999999999999999999", "[1, 'a']", "{a.b = 1}", "= =", '"' + "x" * 5000 + '"', "[" * 2000 + "]" * 2000),
)
CONFIG = (
    *("[core]\n\tfsmonitor = touch {mark}\n", "[core]\n\thooksPath = {folder}\n", "[include]\n\tpath = /dev/zero\n"),
    *(
        '[filter "x"]\n\tclean = touch {mark}\n\tsmudge = touch {mark}\n',
        "[core]\n\tworktree = /\n",
        "[core]\n\tbare = maybe\n",
    ),
    *(
        "[extensions]\n\tobjectFormat = sha3\n",
        "[core]\n\trepositoryformatversion = 99\n",
        "[",
        "\0",
        "[alias]\n\tam = !touch {mark}\n",
    ),
    *(
        "[core]\n\tsshCommand = touch {mark}\n",
        "[uploadpack]\n\tpackObjectsHook = touch {mark}\n",
        "[gpg]\n\tprogram = touch {mark}\n",
    ),
)


def changed(data: bytes, random_: random.Random) -> bytes:
    """`data` with bytes changed, cut off, inserted, moved or repeated, once or a few times."""
    for _ in range(random_.choice((1, 1, 2, 5))):
        at, length = random_.randrange(len(data) + 1), random_.choice((1, 2, 4, 16, 512))
        some = random_.randbytes(length)
        data = random_.choice(
            (
                data[:at] + some + data[at + length :],
                data[:at],
                data[at:],
                data[:at] + some + data[at:],
                data[:at] + data[at + length :],
                data[:at] + data[at : at + length] * 2 + data[at + length :],
                data[:at] + struct.pack("<I", random_.choice(INTEGERS)) + data[at + 4 :],
            )
        )
    return data


def changed_zip(data: bytes, random_: random.Random) -> bytes:
    """A field of one of the archive's headers changed; or a name, wherever it is, for another of its length."""
    kinds = {b"PK\3\4": 30, b"PK\1\2": 46, b"PK\5\6": 22}  # lengths in bytes: a local header, an entry, the end
    marks = [at for kind in kinds for at in _positions(data, kind)]
    if not marks or random_.random() < 0.2:
        return changed(data, random_)
    at = random_.choice(marks)
    length = kinds[data[at : at + 4]]
    if length == 46 and random_.random() < 0.3:
        size = struct.unpack_from("<H", data, at + 28)[0]
        name = random_.choice(NAMES).encode(errors="surrogateescape") if random_.random() < 0.9 else b""
        return data.replace(data[at + 46 : at + 46 + size], name[:size].ljust(size, b"x"))
    field = at + random_.randrange(4, length - 1, 2)
    value = struct.pack("<I", random_.choice((*INTEGERS, random_.getrandbits(32))))[: random_.choice((2, 4))]
    return data[:field] + value + data[field + len(value) :]


# Where the fields of a tar header are: offset and length in bytes (POSIX, ustar).
_TAR = {
    "name": (0, 100),
    "mode": (100, 8),
    "uid": (108, 8),
    "size": (124, 12),
    "mtime": (136, 12),
    "type": (156, 1),
    "link": (157, 100),
    "magic": (257, 8),
    "owner": (265, 32),
    "device": (329, 8),
    "prefix": (345, 155),
}
_TYPES = b"01234567gxLKSDVNX\0\xff"  # of members, also GNU's and what no program knows


def changed_tar(data: bytes, random_: random.Random) -> bytes:
    """A field of a member's header changed, mostly with the checksum that this takes; or a member repeated, moved or lost."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        spans = [(info.offset, info.offset_data + -(-info.size // 512) * 512) for info in archive]
    if not spans or random_.random() < 0.15:
        return changed(data, random_)
    begin, end = random_.choice(spans)
    if random_.random() < 0.25:
        at = random_.choice([*(span[0] for span in spans), spans[-1][1], begin + 512])
        without = data[:begin] + data[end:] if random_.random() < 0.5 else data
        return without[:at] + data[begin:end] + without[at:] if random_.random() < 0.7 else without
    header = bytearray(data[begin : begin + 512])
    field, (at, length) = random_.choice(list(_TAR.items()))
    if field in ("name", "link", "owner", "prefix"):
        value = random_.choice((*NAMES, "info/index.json", "/etc/passwd")).encode(errors="surrogateescape")
    elif field == "type":
        value = bytes([random_.choice(_TYPES)])
    else:
        value = random_.choice(
            (b"7" * length, b"-1", b"", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"0000000001", b"x", b"1 2")
        )
    header[at : at + length] = value[:length].ljust(length, b"\0")
    if random_.random() < 0.9:
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    return data[:begin] + bytes(header) + data[begin + 512 :]


def _positions(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


def changed_value(value: Any, random_: random.Random) -> Any:
    """A value of JSON with one of its parts replaced, removed or repeated under another name."""
    value = copy.deepcopy(value)
    spots: list[tuple[Any, Any]] = []

    def visit(part: Any) -> None:
        keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        for key in keys:
            spots.append((part, key))
            visit(part[key])

    visit(value)
    if not spots or random_.random() < 0.05:
        return random_.choice(VALUES)
    part, key = random_.choice(spots)
    way = random_.random()
    if way < 0.15:
        del part[key]
    elif way < 0.25 and isinstance(part, dict):
        part[random_.choice(NAMES)] = part[key]
    else:
        part[key] = random_.choice(VALUES)
    return value


def changed_toml(text: str, random_: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    at = random_.randrange(len(lines))
    way = random_.random()
    if way < 0.15:
        del lines[at]
    elif way < 0.3:
        lines.insert(random_.randrange(len(lines)), lines[at])
    elif way < 0.8 and "=" in lines[at]:
        lines[at] = f"{lines[at].partition('=')[0]}= {random_.choice(TOML)}\n"
    else:
        return changed(text.encode(), random_)
    return "".join(lines).encode(errors="surrogatepass")


def change_file(path: Path, random_: random.Random, change: Callable[[bytes, random.Random], bytes] = changed) -> None:
    """Changes what a file holds, or puts something else in its place."""
    way, data = random_.random(), path.read_bytes()
    path.unlink()
    if way < 0.8:
        path.write_bytes(change(data, random_))
    elif way < 0.84:
        os.mkfifo(path)
    elif way < 0.88:
        path.symlink_to(random_.choice((path.name, "/dev/null", "/", "/proc/self/mem")))
    elif way < 0.92:
        path.mkdir()
    elif way < 0.95:
        path.write_bytes(data)
        path.chmod(0)
