"""Serialized FileDescriptorProtos, as generated modules carry them: what is where in one, and adding a field to one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lmsbuild.errors import BadSources

# Numbers of fields in descriptor.proto.
_NAME = 1  # of whatever has one
_MESSAGES_OF_FILE, _ENUMS_OF_FILE = 4, 5
_FIELDS, _MESSAGES, _ENUMS = 2, 3, 4
_NUMBER, _LABEL, _TYPE = 3, 4, 5
_OPTIONAL, _BOOL = 1, 8

_VARINT, _COUNTED = 0, 2  # the wire types that a descriptor has


class Range(NamedTuple):
    """Where the description of a message or an enum is, without the key and the length before it."""

    begin: int
    end: int


class _Part(NamedTuple):
    """A value in a serialized message."""

    number: int
    key: int  # where its key begins
    begin: int
    end: int


def ranges(file: bytes) -> dict[tuple[str, ...], Range]:
    """Every message and enum by its name, the names of those around it first."""
    return dict(_ranges(file, Range(0, len(file)), (), _MESSAGES_OF_FILE, _ENUMS_OF_FILE))


def fields(file: bytes, message: tuple[str, ...]) -> list[str]:
    """The names of the message's fields."""
    found = ranges(file).get(message)
    if found is None:
        raise BadSources(f"there is no message {'.'.join(message)} in the descriptor")
    return [_name(file, part) for part in _parts(file, found) if part.number == _FIELDS]


def add_bool(file: bytes, message: tuple[str, ...], name: str, number: int) -> bytes:
    """The file with `bool name = number` as the last field of the message, which has others."""
    about = _value(_NUMBER, number) + _value(_LABEL, _OPTIONAL) + _value(_TYPE, _BOOL)
    field = _counted(_FIELDS, _counted(_NAME, name.encode()) + about)
    around = [ranges(file)[message[:depth]] for depth in range(1, len(message) + 1)]
    last = [part for part in _parts(file, around[-1]) if part.number == _FIELDS][-1].end
    # From the inside out: whatever contains the field gets a new length.
    changed = file[around[-1].begin : last] + field + file[last : around[-1].end]
    for depth in reversed(range(len(around))):
        outer = around[depth - 1] if depth else Range(0, len(file))
        key = next(part.key for part in _parts(file, outer) if part.begin == around[depth].begin)
        changed = _counted(_MESSAGES if depth else _MESSAGES_OF_FILE, changed)
        changed = file[outer.begin : key] + changed + file[around[depth].end : outer.end]
    return changed


def _ranges(
    file: bytes, inside: Range, names: tuple[str, ...], messages: int, enums: int
) -> Iterator[tuple[tuple[str, ...], Range]]:
    for part in _parts(file, inside):
        if part.number in (messages, enums):
            own, found = (*names, _name(file, part)), Range(part.begin, part.end)
            yield own, found
            if part.number == messages:
                yield from _ranges(file, found, own, _MESSAGES, _ENUMS)


def _parts(data: bytes, inside: Range | _Part) -> Iterator[_Part]:
    at = inside.begin
    while at < inside.end:
        key = at
        tag, at = _read_varint(data, key, inside.end)
        if tag & 7 not in (_VARINT, _COUNTED):
            raise BadSources(f"what is at byte {key} of the descriptor is in none")
        value, begin = _read_varint(data, at, inside.end)
        if tag & 7 == _COUNTED:
            at, end = begin, begin + value
        else:
            end = begin
        if end > inside.end:
            raise BadSources(f"the descriptor's value at byte {key} is longer than what it is in")
        yield _Part(tag >> 3, key, at, end)
        at = end


def _name(data: bytes, part: _Part) -> str:
    for each in _parts(data, part):
        if each.number == _NAME:
            return data[each.begin : each.end].decode()
    raise BadSources(f"what is at byte {part.key} of the descriptor has no name")


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at
    raise BadSources("the descriptor is cut off")


def _varint(value: int) -> bytes:
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _counted(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _COUNTED) + _varint(len(data)) + data


def _value(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)
