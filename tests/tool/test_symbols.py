"""What a library needs of the system, and the platform tag that is true for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from hypothesis import given
from hypothesis import strategies as st

from lmsbuild.elf.symbols import Need, claimed_minor, needed_versions, oldest_glibc, true_platforms, uses_new_strings
from lmsbuild.errors import DamagedWheel


@pytest.mark.parametrize(
    ("versions", "need"),
    [
        (["GLIBC_2.2.5", "GLIBC_2.17", "GLIBCXX_3.4.19", "CXXABI_1.3", "GCC_3.0"], Need(17, "GLIBC_2.17")),
        (["GLIBC_2.2.5", "GLIBC_2.28", "GLIBCXX_3.4.22"], Need(28, "GLIBC_2.28")),
        (["GLIBC_2.34", "GLIBCXX_3.4.30"], Need(35, "GLIBCXX_3.4.30")),
        (["GLIBC_2.14", "GLIBCXX_3.4.25"], Need(31, "GLIBCXX_3.4.25")),
        (["CXXABI_1.3.15"], Need(39, "CXXABI_1.3.15")),
        (["GLIBC_2.14", "GLIBCXX_3.4.99"], Need(None, "GLIBCXX_3.4.99")),
        (["GLIBC_PRIVATE"], Need(None, "GLIBC_PRIVATE")),
        ([], Need(0, "")),
    ],
)
def test_the_oldest_glibc_that_promises_every_version(versions: list[str], need: Need) -> None:
    assert oldest_glibc(versions, "x86_64") == need


@pytest.mark.parametrize(
    ("machine", "version", "minor"),
    [("x86_64", "CXXABI_1.3.11", 27), ("ppc64le", "CXXABI_1.3.11", 26), ("aarch64", "GLIBC_2.18", 17)],
)
def test_machines_have_their_own_promises(machine: str, version: str, minor: int) -> None:
    assert oldest_glibc([version], machine).minor == minor


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "ppc64le"])
@given(data=st.data())
def test_auditwheel_judges_alike(machine: str, data: st.DataObject) -> None:
    """Its platform is the first that it knows with such a glibc: it has none for some releases of glibc."""
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    versions = policies.highest.symbol_versions
    known = sorted(f"{family}_{version}" for family in versions for version in versions[family])
    wanted = data.draw(st.sets(st.sampled_from(known), max_size=8))
    need = oldest_glibc(sorted(wanted), machine)
    minors = [minor for policy in policies if (minor := claimed_minor(policy.name)) is not None]
    assert need.minor is not None
    judged = claimed_minor(policies.versioned_symbols_policy({"lib.so": wanted}).name)
    assert judged is not None and judged >= need.minor
    # Of policies that all hold, auditwheel names the oldest.
    assert judged == min(minor for minor in minors if minor >= need.minor)


@pytest.mark.parametrize(
    ("claimed", "minor", "platforms"),
    [
        (["manylinux_2_28_x86_64"], 28, ["manylinux_2_28_x86_64"]),
        (["manylinux_2_28_x86_64"], 29, ["manylinux_2_29_x86_64"]),
        (["manylinux2014_x86_64", "manylinux_2_17_x86_64"], 17, ["manylinux2014_x86_64", "manylinux_2_17_x86_64"]),
        (["manylinux2014_x86_64"], 28, ["manylinux_2_28_x86_64"]),
        (["manylinux1_x86_64", "manylinux_2_28_x86_64"], 17, ["manylinux_2_28_x86_64"]),
        (["linux_x86_64"], 35, ["linux_x86_64"]),
        (["manylinux_2_28_x86_64"], None, ["linux_x86_64"]),
        (["manylinux_2_28_x86_64"], 39, ["linux_x86_64"]),
    ],
)
def test_only_platforms_that_hold_are_claimed(claimed: list[str], minor: int | None, platforms: list[str]) -> None:
    assert true_platforms(claimed, Need(minor, "x"), "x86_64", 36) == platforms


def _library(folder: Path, text: str, *flags: str) -> Path:
    source, library = folder / "a.cc", folder / "a.so"
    source.write_text(text)
    subprocess.run(["g++", "-shared", "-fPIC", *flags, "-o", library, source], check=True)
    return library


def test_versions_are_read_from_a_library(tmp_path: Path) -> None:
    library = _library(tmp_path, '#include <cstdio>\n#include <new>\nvoid* f() { puts("x"); return new int; }\n')
    listed = subprocess.run(["readelf", "-V", "-W", library], capture_output=True, text=True, check=True).stdout
    versions = needed_versions(library)
    assert "GLIBCXX_3.4" in versions
    assert versions == sorted({line.split("Name: ")[1].split()[0] for line in listed.splitlines() if "Name: " in line})


@pytest.mark.parametrize("flags", [(), ("-static-libstdc++",)])
@pytest.mark.parametrize("abi", [0, 1])
def test_the_strings_of_a_library_are_recognised(tmp_path: Path, abi: int, flags: tuple[str, ...]) -> None:
    text = f"#define _GLIBCXX_USE_CXX11_ABI {abi}\n#include <stdexcept>\n#include <string>\n"
    text += 'void f(std::string s) { throw std::runtime_error(s + "."); }\n'
    library = _library(tmp_path, text, *flags)
    assert uses_new_strings(library) is bool(abi)
    if flags:
        listed = subprocess.run(["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True, check=True)
        assert "_ZNSt7__cxx11" in listed.stdout


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_text("text")
    for read in (needed_versions, uses_new_strings):
        with pytest.raises(DamagedWheel, match=r"a\.so"):
            read(tmp_path / "a.so")
