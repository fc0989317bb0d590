"""Adds LMS's fields to TensorFlow's config_pb2.py, a generated file of the wheel that has no source there.

Such a module has a serialized descriptor, and says where in it each message and enum is. Older generators also describe
every field once more, in Python. The fields go into the descriptor, and all else follows from that. TensorFlow's own
C++ keeps their values among those that it does not know.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lmsbuild.errors import BadSources

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

FIELDS = {"lms_enabled": 10001, "lms_defrag_enabled": 10002}  # as edits.toml has them for a full build

_MESSAGE = ("GPUOptions", "Experimental")
_LIKE = "use_unified_memory"  # a field of that message that differs in name and number only
_T = TypeVar("_T")
_DESCRIPTOR_CALLS = ("AddSerializedFile", "FileDescriptor")


class _Range(NamedTuple):
    """Where the description of a message or an enum is in the descriptor, without the key and the length before it."""

    begin: int
    end: int


def add_fields(source: bytes) -> bytes:
    """The module with FIELDS, each a bool, in GPUOptions.Experimental.

    Raises BadSources when the module is not as the known generators write it.
    """
    try:
        return _add_fields(source.decode("ascii")).encode()
    except (SyntaxError, ValueError) as error:
        raise BadSources(f"tensorflow/core/protobuf/config_pb2.py is not a Python module: {error}") from None
    except BadSources as error:
        raise BadSources(f"tensorflow/core/protobuf/config_pb2.py: {error}") from None


def _add_fields(source: str) -> str:
    module = _read(source)
    before = module.descriptor
    file = _parse(before)
    message = dict(_described_in(file)).get(_MESSAGE)
    if message is None:
        raise BadSources(f"there is no message {'.'.join(_MESSAGE)} in the descriptor")
    fields = {field.name: field for field in message.field}
    known = [name for name in FIELDS if name in fields]
    if known or _LIKE not in fields:
        problem = f"has a field {known[0]} already" if known else f"has no field {_LIKE} to take as a model"
        raise BadSources(f"{'.'.join(_MESSAGE)} {problem}")
    old = _by_variable(file)
    for field, number in FIELDS.items():
        message.field.add(name=field, number=number, label=fields[_LIKE].label, type=fields[_LIKE].type)
    after, new = file.SerializeToString(), _by_variable(file)
    for name in sorted(old.keys() | module.ranges.keys()):
        if name not in old or name not in module.ranges or module.ranges[name].value != old[name]:
            raise BadSources(f"{name} is not where the module says that its description is")
    edits = [_Edit(module.literal, repr(after) if module.of_bytes else ascii(after.decode("latin1")))]
    for name, places in module.ranges.items():
        edits += [_Edit(places.begin, str(new[name].begin)), _Edit(places.end, str(new[name].end))]
    if module.fields:
        last = module.fields[-1]
        edits.append(
            _Edit(_Place(last.end, last.end), "".join(",\n    " + text for text in _described(source, module.fields)))
        )
    for edit in sorted(edits, key=lambda edit: edit.place.begin, reverse=True):
        source = source[: edit.place.begin] + edit.text + source[edit.place.end :]
    return source


def _parse(data: bytes) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # here, since only wheels of TensorFlow need it
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(data)
    except DecodeError as error:
        raise BadSources(f"the descriptor cannot be read: {error}") from None
    if file.SerializeToString() != data:
        raise BadSources("the descriptor is not as protobuf writes it")
    return file


def _described_in(
    inside: FileDescriptorProto | DescriptorProto, around: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], DescriptorProto | EnumDescriptorProto]]:
    """Every message and enum with its name, the names of those around it first."""
    for enum in inside.enum_type:
        yield (*around, enum.name), enum
    for message in inside.nested_type if around else inside.message_type:
        yield (*around, message.name), message
        yield from _described_in(message, (*around, message.name))


def _by_variable(file: FileDescriptorProto) -> dict[str, _Range]:
    """Where every message and enum is, by the variable that stands for it in the module."""
    data, found = file.SerializeToString(), {}
    for names, each in _described_in(file):
        own = each.SerializeToString()
        begin = data.index(own)  # the first that is alike, as the generators do it
        found["_" + "_".join(names).upper()] = _Range(begin, begin + len(own))
    return found


@dataclass(frozen=True)
class _Place:
    """A part of the module's text."""

    begin: int
    end: int


@dataclass(frozen=True)
class _Edit:
    place: _Place
    text: str


@dataclass(frozen=True)
class _Ranged:
    """Where the module says the range of a message or an enum."""

    begin: _Place
    end: _Place
    value: _Range


@dataclass(frozen=True)
class _Module:
    descriptor: bytes
    literal: _Place  # of the descriptor
    of_bytes: bool  # whether the literal is one of bytes; else it is a str, one character for each
    ranges: dict[str, _Ranged]
    fields: list[_Place]  # the message's, in a module that describes them in Python


def _read(source: str) -> _Module:
    begins = [0, *(match.end() for match in re.finditer("\n", source))]

    def place(node: ast.expr) -> _Place:
        assert node.end_lineno is not None and node.end_col_offset is not None  # as in all that was parsed
        return _Place(begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset)

    literals: list[tuple[ast.expr, bytes | str]] = []
    offsets: dict[tuple[str, str], tuple[ast.expr, int]] = {}
    fields: list[_Place] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _DESCRIPTOR_CALLS:
            given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "serialized_pb")]
            for value in given:
                literals.extend(_constants(value, bytes))
                literals.extend(_constants(value, str))
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr in ("_serialized_start", "_serialized_end"):
            for number in _constants(node.value, int):
                offsets[_variable(target.value), target.attr.removeprefix("_")] = number
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg in ("serialized_start", "serialized_end"):
                    for number in _constants(keyword.value, int):
                        offsets[target.id, keyword.arg] = number
                message = "_" + "_".join(_MESSAGE).upper()
                if keyword.arg == "fields" and target.id == message and isinstance(keyword.value, ast.List):
                    fields = [place(field) for field in keyword.value.elts]
    if len(literals) != 1:
        raise BadSources(f"it has {len(literals)} descriptors that can be read, not one")
    literal, data = literals[0]
    ranges = {}
    for name in {name for name, _ in offsets}:
        begin, end = offsets.get((name, "serialized_start")), offsets.get((name, "serialized_end"))
        if begin is not None and end is not None:
            ranges[name] = _Ranged(place(begin[0]), place(end[0]), _Range(begin[1], end[1]))
    return _Module(
        descriptor=data if isinstance(data, bytes) else data.encode("latin1"),
        literal=place(literal),
        of_bytes=isinstance(data, bytes),
        ranges=ranges,
        fields=fields,
    )


def _constants(value: ast.expr, kind: type[_T]) -> list[tuple[ast.expr, _T]]:
    """The constant that an expression is, or is made of by a call with one argument."""
    if isinstance(value, ast.Call) and len(value.args) == 1:
        value = value.args[0]
    return [(value, value.value)] if isinstance(value, ast.Constant) and isinstance(value.value, kind) else []


def _variable(owner: ast.expr) -> str:
    """_NAME, or _globals['_NAME']."""
    if isinstance(owner, ast.Subscript) and isinstance(owner.slice, ast.Constant):
        return str(owner.slice.value)
    return ast.unparse(owner)


def _described(source: str, fields: list[_Place]) -> list[str]:
    """The descriptions of FIELDS in Python."""
    texts = [source[field.begin : field.end] for field in fields]
    found = []
    for index, like in enumerate(texts):
        for place, (name, number) in enumerate(FIELDS.items(), len(fields)) if f"name='{_LIKE}'" in like else ():
            text, indices = re.subn(rf"\bindex={index}\b", f"index={place}", like)
            text, numbers = re.subn(r"\bnumber=\d+\b", f"number={number}", text)
            if indices == numbers == 1:
                found.append(text.replace(_LIKE, name))
    if len(found) != len(FIELDS):
        raise BadSources(f"its description of {_LIKE} cannot be read")
    return found
