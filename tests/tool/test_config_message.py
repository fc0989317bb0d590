"""LMS's fields in a generated config_pb2.py, as protobuf itself reads the result."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from lmsbuild.errors import BadSources
from lmsbuild.graft.config_message import add_fields

PACKAGE = "lms_test"
BOOL, MESSAGE, ENUM = 8, 11, 14

# What a program does with the module; the stock module must keep what it does not know.
PROGRAM = """
import sys
from google.protobuf import descriptor_pb2
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == sys.argv[1], api_implementation.Type()
import config_pb2

options = config_pb2.GPUOptions()
if sys.argv[2] == "stock":
    data = bytes.fromhex(sys.argv[3])
    options.ParseFromString(data)
    assert not hasattr(options.experimental, "lms_enabled") and options.SerializeToString() == data
    sys.exit()
options.experimental.lms_enabled = options.experimental.lms_defrag_enabled = True
options.experimental.use_unified_memory = True
data = options.SerializeToString()
again = config_pb2.GPUOptions.FromString(data)
assert again == options and again.experimental.lms_enabled and again.experimental.lms_defrag_enabled
assert not config_pb2.GPUOptions().experimental.lms_enabled
file = descriptor_pb2.FileDescriptorProto.FromString(config_pb2.DESCRIPTOR.serialized_pb)

def check(descriptor, expected):  # in pure Python, what the ranges in the module are for
    own = descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(own)
    assert own == expected, descriptor.full_name
    for inner in expected.nested_type:
        check(descriptor.nested_types_by_name[inner.name], inner)
    for inner in expected.enum_type:
        own = descriptor_pb2.EnumDescriptorProto()
        descriptor.enum_types_by_name[inner.name].CopyToProto(own)
        assert own == inner, inner.name

for message in file.message_type:
    check(config_pb2.DESCRIPTOR.message_types_by_name[message.name], message)
print(data.hex())
"""


def file_descriptor(padding: int = 1) -> descriptor_pb2.FileDescriptorProto:
    """A config.proto with messages before, in and after the one that gets the field.

    With more padding the lengths of the messages need more bytes.
    """
    file = descriptor_pb2.FileDescriptorProto(name="config.proto", package=PACKAGE, syntax="proto3")
    file.message_type.add(name="Before").field.add(name="x", number=1, label=1, type=BOOL)
    options = file.message_type.add(name="GPUOptions")
    options.field.add(
        name="experimental", number=9, label=1, type=MESSAGE, type_name=f".{PACKAGE}.GPUOptions.Experimental"
    )
    experimental = options.nested_type.add(name="Experimental")
    experimental.field.add(
        name="virtual_devices", number=1, label=3, type=MESSAGE, type_name=f".{PACKAGE}.GPUOptions.Experimental.Devices"
    )
    experimental.field.add(name="use_unified_memory", number=2, label=1, type=BOOL)
    experimental.field.add(name="y" * padding, number=3, label=1, type=BOOL)
    experimental.nested_type.add(name="Devices").field.add(name="x", number=1, label=1, type=BOOL)
    after = file.message_type.add(name="After")
    after.field.add(name="level", number=1, label=1, type=ENUM, type_name=f".{PACKAGE}.After.Level")
    level = after.enum_type.add(name="Level")
    level.value.add(name="NONE", number=0)
    return file


def placed(file: descriptor_pb2.FileDescriptorProto) -> dict[str, tuple[int, int]]:
    """Where each message and enum is in the serialized file; found by its bytes, which occur once."""
    data, found = file.SerializeToString(), {}

    def visit(message: descriptor_pb2.DescriptorProto, prefix: str) -> None:
        for each in (message, *message.enum_type):
            name = f"{prefix}_{message.name.upper()}" + (f"_{each.name.upper()}" if each is not message else "")
            bytes_of = each.SerializeToString()
            assert data.count(bytes_of) == 1, name
            found[name] = (data.index(bytes_of), data.index(bytes_of) + len(bytes_of))
        for inner in message.nested_type:
            visit(inner, f"{prefix}_{message.name.upper()}")

    for message in file.message_type:
        visit(message, "")
    return found


def with_globals(file: descriptor_pb2.FileDescriptorProto) -> str:
    """As generators from protobuf 4.21 on write it."""
    places = "".join(
        f"  _globals['{name}']._serialized_start={begin}\n  _globals['{name}']._serialized_end={end}\n"
        for name, (begin, end) in placed(file).items()
    )
    return f"""from google.protobuf import descriptor as _descriptor
from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf.internal import builder as _builder
DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile({file.SerializeToString()!r})
_globals = globals()
_builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, _globals)
_builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, 'config_pb2', _globals)
if not _descriptor._USE_C_DESCRIPTORS:
  DESCRIPTOR._loaded_options = None
{places}"""


def with_names(file: descriptor_pb2.FileDescriptorProto) -> str:
    """As those from 3.20 on write it."""
    text = with_globals(file)
    for name in placed(file):
        text = text.replace(f"_globals['{name}']", name)
    return text


@pytest.mark.parametrize("padding", [1, 20, 40, 100])
@pytest.mark.parametrize("write", [with_globals, with_names])
def test_the_module_has_the_field(
    write: Callable[[descriptor_pb2.FileDescriptorProto], str], padding: int, tmp_path: Path
) -> None:
    source = write(file_descriptor(padding))
    for folder, text in (("stock", source), ("changed", add_fields(source.encode()).decode())):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config_pb2.py").write_text(text)
    for implementation in ("upb", "python"):
        data = run(tmp_path / "changed", implementation, "changed")
        assert data
        run(tmp_path / "stock", implementation, "stock", data)


trees = st.recursive(st.just(()), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=12)


def grow(
    message: descriptor_pb2.DescriptorProto | descriptor_pb2.FileDescriptorProto, tree: tuple, numbers: Iterator[int]
) -> None:
    """Gives the message others inside it, as the tree has branches, and each that has none an enum."""
    for branch in tree:
        of_file = isinstance(message, descriptor_pb2.FileDescriptorProto)
        inner = (message.message_type if of_file else message.nested_type).add(name=f"Message{next(numbers)}")
        if not branch:
            inner.enum_type.add(name=f"Enum{next(numbers)}").value.add(name="NONE", number=0)
        grow(inner, branch, numbers)


@given(padding=st.integers(1, 20_000), beside=trees, inside=trees, after=trees)
def test_a_module_of_any_shape_is_as_if_generated_with_the_field(
    padding: int, beside: tuple, inside: tuple, after: tuple
) -> None:
    before, numbers = file_descriptor(padding), itertools.count()
    grow(before.message_type[1].nested_type[0], inside, numbers)
    grow(before.message_type[1], beside, numbers)
    grow(before, after, numbers)
    expected = copy.deepcopy(before)
    experimental = expected.message_type[1].nested_type[0]
    experimental.field.add(name="lms_enabled", number=10001, label=1, type=BOOL)
    experimental.field.add(name="lms_defrag_enabled", number=10002, label=1, type=BOOL)
    assert add_fields(with_globals(before).encode()).decode() == with_globals(expected)


def run(folder: Path, implementation: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, implementation, *arguments],
        cwd=folder,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# What generators before 3.20 write: every field is described once more, and the descriptor is text. The protobuf of our
# own environment refuses to load such a module: the official wheel of 2.1.0 is tested with its own.
OLD = """import sys
_b=sys.version_info[0]<3 and (lambda x:x) or (lambda x:x.encode('latin1'))
DESCRIPTOR = _descriptor.FileDescriptor(
  name='config.proto',
  serialized_options=_b('\\n\\030'),
  serialized_pb=_b({data!a})
)
_GPUOPTIONS_EXPERIMENTAL = _descriptor.Descriptor(
  name='Experimental',
  fields=[
    _descriptor.FieldDescriptor(
      name='virtual_devices', full_name='GPUOptions.Experimental.virtual_devices', index=0,
      number=1, type=11),
    _descriptor.FieldDescriptor(
      name='use_unified_memory', full_name='GPUOptions.Experimental.use_unified_memory', index=1,
      number=2, type=8, default_value=False),
    _descriptor.FieldDescriptor(
      name='y', full_name='GPUOptions.Experimental.y', index=2,
      number=3, type=8, default_value=False),
  ],
  serialized_start={_GPUOPTIONS_EXPERIMENTAL[0]},
  serialized_end={_GPUOPTIONS_EXPERIMENTAL[1]},
)
"""


def old_module(file: descriptor_pb2.FileDescriptorProto) -> str:
    places = placed(file)
    others = "".join(
        f"{name} = _descriptor.Descriptor(serialized_start={begin}, serialized_end={end})\n"
        for name, (begin, end) in places.items()
        if name != "_GPUOPTIONS_EXPERIMENTAL"
    )
    return OLD.format(data=file.SerializeToString().decode("latin1"), **places) + others


def test_an_old_module_describes_the_field_twice() -> None:
    before = file_descriptor()
    changed = add_fields(old_module(before).encode()).decode()
    expected = file_descriptor()
    experimental = expected.message_type[1].nested_type[0]
    experimental.field.add(name="lms_enabled", number=10001, label=1, type=BOOL)
    experimental.field.add(name="lms_defrag_enabled", number=10002, label=1, type=BOOL)
    described = """
    _descriptor.FieldDescriptor(
      name='lms_enabled', full_name='GPUOptions.Experimental.lms_enabled', index=3,
      number=10001, type=8, default_value=False),
    _descriptor.FieldDescriptor(
      name='lms_defrag_enabled', full_name='GPUOptions.Experimental.lms_defrag_enabled', index=4,
      number=10002, type=8, default_value=False),
  ],"""
    text = old_module(expected).replace("\n  ],", described)
    assert changed == text


def lacks(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: "print(", "not a Python module"),
        (lambda text: "\xff", "not a Python module"),
        (lambda text: "", "0 descriptors"),
        (lambda text: text + text, "2 descriptors"),
        (lambda text: add_fields(text.encode()).decode(), "a field lms_enabled already"),
        (lambda text: lacks(text, "use_unified_memory", "use_abcdefg_memory"), "no field use_unified_memory"),
        (lambda text: lacks(text, "Experimental", "Experimentum"), "no message GPUOptions.Experimental"),
        (lambda text: lacks(text, "_globals['_AFTER']", "_globals['_AFTERS']"), "_AFTER is not where"),
        (lambda text: lacks(text, "_start=", "_start=1"), "is not where"),
        (lambda text: lacks(text, "AddSerializedFile(b'\\n", "AddSerializedFile(b'\\n\\n"), "the descriptor"),
    ],
)
def test_what_is_not_understood_is_refused(spoil: Callable[[str], str], words: str) -> None:
    with pytest.raises(BadSources, match=words):
        add_fields(spoil(with_globals(file_descriptor())).encode("utf-8"))


def test_an_old_module_whose_field_cannot_be_described_is_refused() -> None:
    text = old_module(file_descriptor()).replace("name='use_unified_memory'", "name=NAME")
    with pytest.raises(BadSources, match="its description of use_unified_memory cannot be read"):
        add_fields(text.encode())
