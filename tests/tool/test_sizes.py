"""What a program may give as a size: patches/src/python/_sizes.py, and _memory.py, which knows what a part is a part of."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmsbuild import paths


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, paths.patches_folder() / "src" / "python" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sizes, memory = _load("_sizes"), _load("_memory")
WHOLE = 10**10


def parse(value: object) -> int:
    return sizes.parse("limit", value, lambda: WHOLE)


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (0, 0),
        (2**64 - 1, 2**64 - 1),
        ("0", 0),
        ("4096", 4096),
        ("12 bytes", 12),
        ("1B", 1),
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("8g", 8 << 30),
        (" 512 MiB ", 512 << 20),
        ("1.5GB", 1_500_000_000),
        (".5K", 512),
        ("2TiB", 2 << 40),
        (0.5, WHOLE // 2),
        (1.0, WHOLE),
        ("0.5", WHOLE // 2),
        ("50%", WHOLE // 2),
        ("12.5 %", WHOLE // 8),
        ("100%", WHOLE),
    ],
)
def test_sizes(value: object, nbytes: int) -> None:
    assert parse(value) == nbytes


@pytest.mark.parametrize("value", [True, False, None, b"8G", [1], 1j])
def test_what_is_no_number_and_no_text_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"^limit: expected a size, got .*'8GiB'"):
        parse(value)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (1.5, "did you mean '1.5GiB'?"),
        ("1.5", "did you mean '1.5GiB'?"),
        (8e9, "did you mean the int 8000000000?"),
        (0.0, "is no part"),
        (-0.5, "is no part"),
        (float("nan"), "is no part"),
        (float("inf"), "is no part"),
        (-float("inf"), "is no part"),
        ("0%", "is no part"),
        ("101%", "is no part"),
        (-1, "at least 0"),
        (2**64, "at most 2**64 - 1"),
        ("99999999999T", "at most 2**64 - 1"),
        ("-8G", "write it as '8GiB'"),
        ("8 gigs", "write it as '8GiB'"),
        ("8 GiB/s", "write it as '8GiB'"),
        ("8ib", "write it as '8GiB'"),
        ("8.0.1G", "write it as '8GiB'"),
        ("", "write it as '8GiB'"),
        ("GiB", "write it as '8GiB'"),
        ("٨G", "write it as '8GiB'"),
    ],
)
def test_what_is_no_size_says_what_may_have_been_meant(value: object, meant: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(value)
    assert str(raised.value).startswith("limit: ") and meant in str(raised.value)


@given(st.integers(0, 2**53), st.sampled_from("KMG"), st.sampled_from(["", " "]), st.booleans())
def test_units_multiply(number: int, unit: str, space: str, lower: bool) -> None:
    power = "KMG".index(unit) + 1
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000)):
        text = f"{number}{space}{unit}{suffix}"
        nbytes = number * base**power
        if nbytes < 2**64:
            assert parse(text.lower() if lower else text) == nbytes


@given(st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.booleans(), st.none(), st.binary(max_size=3)))
def test_anything_is_a_size_or_one_clear_error(value: object) -> None:
    try:
        nbytes = parse(value)
    except (TypeError, ValueError) as error:
        assert str(error).startswith("limit: ")
    else:
        assert type(nbytes) is int and 0 <= nbytes < 2**64


@given(st.floats(min_value=0, max_value=1, exclude_min=True))
def test_a_part_is_at_most_the_whole(part: float) -> None:
    assert 0 <= parse(part) <= WHOLE


def test_a_part_of_nothing() -> None:
    with pytest.raises(ValueError, match="min_size: 0.5 is a part"):
        sizes.parse("min_size", 0.5)


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8 GiB"), (2**64 - 1, "16 EiB")]
)
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert sizes.text(nbytes) == text


def _place(root: Path, **files: str) -> None:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_the_least_limit_of_the_groups_that_the_process_is_in(tmp_path: Path) -> None:
    installed = memory.usable(str(tmp_path / "none"), str(tmp_path))
    assert installed > 1 << 20
    _place(tmp_path, proc__self__cgroup="0::/a/b/c\n", fs__a__b__memoryDOTmax="1048576\n")
    _place(tmp_path, fs__a__memoryDOTmax="2097152\n", fs__a__b__c__memoryDOTmax="max\n")
    assert memory.usable(str(tmp_path / "proc"), str(tmp_path / "fs")) == 1 << 20


def test_the_groups_of_the_first_version_and_a_container_that_does_not_see_its_own_name(tmp_path: Path) -> None:
    _place(tmp_path, proc__self__cgroup="9:cpu,memory:/docker/4f0\n1:name=systemd:/x\n", fs__memoryDOTmax="1\n")
    _place(tmp_path, fs__memory__memoryDOTlimit_in_bytes="1048576\n")
    assert memory.usable(str(tmp_path / "proc"), str(tmp_path / "fs")) == 1 << 20


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    _place(tmp_path, proc__self__cgroup="0::/\n", fs__memoryDOTmax=f"{2**62}\n")
    none = memory.usable(str(tmp_path / "none"), str(tmp_path))
    assert memory.usable(str(tmp_path / "proc"), str(tmp_path / "fs")) == none
