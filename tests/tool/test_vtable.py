"""Whether a decorator overrides every virtual method, read off what the compiler made of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lmsbuild.elf.vtable import check_decorator
from lmsbuild.errors import BadSources, UnforwardedMethod

INTERFACE = """
namespace c10 {
struct Allocator {
  virtual ~Allocator() = default;
  virtual void* allocate(unsigned long) = 0;
  virtual bool simple(const void*) const;
};
namespace cuda {
struct CUDAAllocator : Allocator {
  virtual void record(int) = 0;
  virtual void record(long) {}
  virtual void begin() {}
  void helper() {}
};
}}
template <typename Base> struct Link : Base { void begin() override {} };
"""
METHODS = {
    "allocate": "void* allocate(unsigned long) override { return nullptr; }",
    "simple": "bool simple(const void*) const override { return true; }",
    "record(int)": "void record(int) override {}",
    "record(long)": "void record(long) override {}",
}


FORWARDING = "Link<c10::cuda::CUDAAllocator>"  # overrides begin()


def _compile(folder: Path, methods: dict[str, str], base: str = FORWARDING, local: bool = False, *flags: str) -> Path:
    body = "\n".join(methods.values())
    text = f"struct Decorator final : {base} {{ {body} }};"
    if local:
        text = f"namespace {{ {text} }}"
    source, target = folder / "Decorator.cpp", folder / "Decorator.o"
    source.write_text(
        f"{INTERFACE} namespace mine {{ {text} }}\nc10::Allocator* make() {{ return new mine::Decorator; }}\n"
    )
    subprocess.run(["g++", "-fPIC", "-c", *(flags or ["-O2"]), "-o", target, source], check=True)
    return target


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("flags", [("-O0",), ("-O2", "-fvisibility=hidden"), ("-O2", "-ffunction-sections")])
def test_a_decorator_that_overrides_everything_is_accepted(tmp_path: Path, local: bool, flags: tuple[str, ...]) -> None:
    check_decorator([_compile(tmp_path, METHODS, FORWARDING, local, *flags)], "Decorator")


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(
    ("left_out", "named"),
    [("simple", "c10::Allocator::simple"), ("record(long)", "c10::cuda::CUDAAllocator::record")],
)
def test_a_method_that_is_left_to_a_base_is_named(tmp_path: Path, local: bool, left_out: str, named: str) -> None:
    methods = {name: text for name, text in METHODS.items() if name != left_out}
    with pytest.raises(UnforwardedMethod, match=f"does not override {named}, which"):
        check_decorator([_compile(tmp_path, methods, FORWARDING, local)], "Decorator")


def test_a_link_that_is_missing_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(UnforwardedMethod, match="c10::cuda::CUDAAllocator::begin"):
        check_decorator([_compile(tmp_path, METHODS, "c10::cuda::CUDAAllocator")], "Decorator")


def test_a_decorator_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadSources, match="no class Another"):
        check_decorator([_compile(tmp_path, METHODS)], "Another")


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "Decorator.o"
    file.write_text("text")
    with pytest.raises(BadSources, match=r"Decorator\.o"):
        check_decorator([file], "Decorator")
