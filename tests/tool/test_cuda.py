"""CUDA's runtime out of packages, and the library that is built with it, on stand-ins."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import grafted
import sboms
import synthetic
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.errors import (
    BadSources,
    CompilerFailed,
    DamagedWheel,
    DownloadFailed,
    NoSpace,
    UnforwardedMethod,
    UnknownCuda,
    UnsafeMember,
    WrongHash,
)
from lmsbuild.fetch import cuda
from lmsbuild.graft import graft
from lmsbuild.patch import series
from lmsbuild.wheel.wheel import file_sha256, record_hash, record_text
from synthetic import Member
from workshop import Workshop

pytestmark = pytest.mark.build  # runs pip and the tool for every build

LIBRARY = "torch/lib/libtorch_lms_cuda.so"
VERSION = synthetic.VERSION + b"cuda: Optional[str] = '12.4'\n"
PLATFORM = f"manylinux2014_{synthetic.TARGET.machine}"
SOURCE = b"""#include <ATen/lms/pager.h>
#include <crt/host_defines.h>
#include <cuda_runtime_api.h>
#include <c10/allocator.h>
extern "C" const char* lms_where(void);
int stock();
struct Decorator final : c10::Allocator {
  int allocate() override { return cudaAnswer() + stock() + CRT; }
  int free() override { return 0; }
};
c10::Allocator* allocator = new Decorator;
extern "C" __attribute__((visibility("default"))) int lms_torch_cuda_answer(void) {
  return lms_where() != nullptr ? allocator->allocate() : 0;
}
"""
SERIES = """
[[graft.library]]
path = "torch/lib/libtorch_lms_cuda.so"
sources = ["aten/src/ATen/cuda/LmsCuda.cpp"]
link = ["torch_lms", "c10_cuda", "c10"]
requires = "torch/lib/libc10_cuda.so"
cuda = true
decorator = "Decorator"
"""
ALLOCATOR = b"""namespace c10 {
struct Allocator {
  virtual ~Allocator() = default;
  virtual int allocate() = 0;
  virtual int free() { return 1; }
};
}
"""


def _package(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-{PLATFORM}\n".encode(),
    }
    rows = [(member, record_hash(data), str(len(data))) for member, data in files.items()]
    path = folder / f"{name}-{version}-py3-none-{PLATFORM}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**files, f"{info}/RECORD": record_text([*rows, (f"{info}/RECORD", "", "")])}.items():
            archive.writestr(member, data)
    return path


def _compiled(folder: Path, name: str, text: str, soname: str) -> bytes:
    source, library = folder / f"{name}.cc", folder / soname
    source.write_text(text)
    subprocess.run(["g++", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", library, source], check=True)
    return library.read_bytes()


@pytest.fixture
def with_cuda(workshop: Workshop, stand_in: dict[str, Member], monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A workshop with a CUDA wheel, and a registry that has CUDA's runtime as two packages."""
    shop = workshop.folder / "shop"
    shop.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    answer = 'extern "C" int cudaAnswer() { return 40; }\n'
    runtime = {
        "nvidia/cuda_runtime/include/cuda_runtime_api.h": b'extern "C" int cudaAnswer();\n',
        "nvidia/cuda_runtime/lib/libcudart.so.12": _compiled(shop, "cudart", answer, "libcudart.so.12"),
        "nvidia/cuda_runtime/__init__.py": b"",
    }
    crt = {
        "nvidia/cuda_nvcc/include/crt/host_defines.h": b"#define CRT 0\n",
        "nvidia/cuda_nvcc/bin/ptxas": b"large",
    }
    packages = [_package(shop, "nvidia_runtime", "12.4.127", runtime), _package(shop, "nvidia_crt", "12.4.131", crt)]
    lines = "".join(f'"{path.name}" = "{file_sha256(path)}"\n' for path in packages)
    (workshop.patches / "catalogue/cuda.toml").write_text(
        f'["12.4"]\n{lines}["12.1"]\n"a-1-py3-none-win_amd64.whl" = ""\n'
    )
    files = {
        **stand_in,
        "torch/version.py": Member(VERSION),
        "torch/include/c10/allocator.h": Member(ALLOCATOR),
        "torch/lib/libc10_cuda.so": Member(
            _compiled(shop, "c10_cuda", "int stock() { return 2; }\n", "libc10_cuda.so"), 0o755
        ),
    }
    synthetic.write_wheel(workshop.base, files)
    source = workshop.patches / "src/pytorch/aten/src/ATen/cuda/LmsCuda.cpp"
    source.parent.mkdir()
    source.write_bytes(SOURCE)
    synthetic.edit_file(workshop.patches / "catalogue/pytorch/series.toml", lambda text: text + SERIES)
    workshop.generate()
    return workshop


def test_a_cuda_wheel_gets_the_second_library(with_cuda: Workshop) -> None:
    made = graft.build(with_cuda.options())
    unpacked = with_cuda.folder / "x"
    with zipfile.ZipFile(made) as archive:
        archive.extractall(unpacked)
        assert archive.getinfo(LIBRARY).external_attr >> 16 & 0o777 == 0o755
        assert not [name for name in archive.namelist() if "nvidia" in name or "cudart" in name]
    said = grafted.dynamic(unpacked / LIBRARY)
    assert {"libtorch_lms.so", "libc10_cuda.so", "libcudart.so.12"} <= {*said["DT_NEEDED"]}
    ctypes.CDLL(str(with_cuda.folder / "shop/libcudart.so.12"), ctypes.RTLD_GLOBAL)  # as torch has it loaded
    assert ctypes.CDLL(str(unpacked / LIBRARY)).lms_torch_cuda_answer() == 42
    headers = [row for name, row in sboms.of_wheel(made).parts().items() if name.startswith("nvidia-")]
    packages = {path.name: file_sha256(path) for path in (with_cuda.folder / "shop").glob("*.whl")}
    assert {sboms.properties(row)["file"]: sboms.sha256(row) for row in headers} == packages
    assert {row["scope"] for row in headers} == {"excluded"}  # nothing of them is in the wheel


CARRIED = "torch/lib/libcudart-0a1b2c3d.so.12"


def _carrying(workshop: Workshop, stand_in: dict[str, Member], answer: str) -> Workshop:
    """A wheel that carries CUDA's runtime, which has a name with a hash and calls itself by the one without."""
    files = {
        **stand_in,
        "torch/version.py": Member(synthetic.VERSION + b"cuda = '10.2'\n"),
        "torch/include/c10/allocator.h": Member(ALLOCATOR),
        CARRIED: Member(_compiled(workshop.folder, "cudart", answer, "libcudart.so.12"), 0o755),
        "torch/lib/libc10_cuda.so": Member(
            _compiled(workshop.folder, "c10_cuda", "int stock() { return 2; }\n", "libc10_cuda.so"), 0o755
        ),
    }
    synthetic.write_wheel(workshop.base, files)
    with (workshop.patches / "catalogue/cuda.toml").open("a") as file:
        file.write('["10.2"]\nheaders = "12.4"\n')
    return workshop


def test_a_runtime_that_the_wheel_carries_is_the_one(with_cuda: Workshop, stand_in: dict[str, Member]) -> None:
    made = graft.build(_carrying(with_cuda, stand_in, 'extern "C" int cudaAnswer() { return 50; }\n').options())
    unpacked = with_cuda.folder / "x"
    with zipfile.ZipFile(made) as archive:
        archive.extractall(unpacked)
    needed = grafted.dynamic(unpacked / LIBRARY)["DT_NEEDED"]
    assert [name for name in needed if "cudart" in name] == [Path(CARRIED).name]
    program = f"import ctypes; print(ctypes.CDLL({str(unpacked / LIBRARY)!r}).lms_torch_cuda_answer())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "52\n"  # in a process that has no other runtime loaded


def test_a_runtime_that_lacks_a_function_ends_the_build(with_cuda: Workshop, stand_in: dict[str, Member]) -> None:
    with pytest.raises(CompilerFailed, match="undefined reference to .cudaAnswer"):
        graft.build(_carrying(with_cuda, stand_in, 'extern "C" int cudaOther() { return 50; }\n').options())


def test_a_wheel_of_a_version_without_packages_has_to_carry_the_runtime(
    with_cuda: Workshop, stand_in: dict[str, Member]
) -> None:
    _carrying(with_cuda, stand_in, "")
    with zipfile.ZipFile(with_cuda.base) as archive:
        files = {name: Member(archive.read(name)) for name in archive.namelist() if name != CARRIED}
    synthetic.write_wheel(with_cuda.base, {name: data for name, data in files.items() if not name.endswith("RECORD")})
    with pytest.raises(DamagedWheel, match="carries no CUDA runtime"):
        graft.build(with_cuda.options())


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("12.1", r"the CUDA version of .* is 12\.4, but tags\.toml says 12\.1"),
        ("12.4", r"the C\+\+ ABI of .* is cxx11"),
    ],
)
def test_a_known_cuda_wheel_has_to_be_as_the_catalogue_says(with_cuda: Workshop, stated: str, message: str) -> None:
    tags = with_cuda.patches / "catalogue/pytorch/tags.toml"
    known = f'[tag.wheels]\n"{with_cuda.base.name}" = "{file_sha256(with_cuda.base)}"\n'
    row = f'cuda = "{stated}"\nabi = "pre-cxx11"\n'
    synthetic.edit_file(tags, lambda text: text.replace("[tag.wheels]\n", known).replace('abi = "cxx11"\n', row))
    with pytest.raises(BadSources, match=f"{message}.*lmsbuild tag add pytorch v2.13.0 --update"):
        graft.build(with_cuda.options())


def test_a_wheel_without_cuda_does_not(with_cuda: Workshop, stand_in: dict[str, Member]) -> None:
    synthetic.write_wheel(with_cuda.base, stand_in)
    (with_cuda.patches / "catalogue/cuda.toml").unlink()
    with zipfile.ZipFile(graft.build(with_cuda.options())) as archive:
        assert "torch/lib/libtorch_lms.so" in archive.namelist()
        assert LIBRARY not in archive.namelist()


def test_a_method_that_is_not_forwarded_ends_the_build(with_cuda: Workshop) -> None:
    source = with_cuda.patches / "src/pytorch/aten/src/ATen/cuda/LmsCuda.cpp"
    source.write_bytes(SOURCE.replace(b"  int free() override { return 0; }\n", b""))
    with_cuda.generate()
    with pytest.raises(UnforwardedMethod, match=r"Decorator does not override c10::Allocator::free.*LmsCuda\.cpp"):
        graft.build(with_cuda.options())
    assert not list(with_cuda.output.iterdir())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"cuda: Optional[str] = '11.8'\n", r"CUDA 11\.8 on .*12\.1, 12\.4 only"),
        (b"cuda = '12.1'\n", r"CUDA 12\.1 on"),  # known, but not for this kind of machine
        (b"cuda: Optional[str] = None\n", "states no CUDA version"),
    ],
)
def test_a_cuda_version_without_packages_is_said(
    with_cuda: Workshop, stand_in: dict[str, Member], line: bytes, message: str
) -> None:
    other = Member(synthetic.VERSION + line)
    library = stand_in["torch/lib/libc10.so"]
    synthetic.write_wheel(with_cuda.base, {**stand_in, "torch/version.py": other, "torch/lib/libc10_cuda.so": library})
    with pytest.raises(UnknownCuda, match=message):
        graft.build(with_cuda.options())
    assert not list(with_cuda.output.iterdir())


@pytest.mark.parametrize("version_file", [b"cuda = '11.7'\n", b"x = 1\ncuda: Optional[str] = '11.7'\nhip = None\n"])
def test_the_cuda_version_is_read_off_version_files_of_every_age(version_file: bytes) -> None:
    patches = paths.patches_folder()
    stated = series.read_series(patches, catalogue.find_tag(patches, "v2.13.0", "pytorch")).graft.states.cuda
    assert stated.pattern.findall(version_file) == [b"11.7"]


def _unpack(workshop: Workshop) -> cuda.Runtime:
    return cuda.unpack(workshop.patches, "12.4", workshop.cache, workshop.folder / "cuda")


def test_only_headers_and_the_runtime_library_are_unpacked(with_cuda: Workshop) -> None:
    runtime = _unpack(with_cuda)
    files = {path.relative_to(with_cuda.folder / "cuda").as_posix() for path in runtime.include.parent.rglob("*.*")}
    assert files == {"include/cuda_runtime_api.h", "include/crt/host_defines.h", "lib/libcudart.so.12"}
    assert runtime.library.name == "libcudart.so.12"


def test_a_package_that_is_not_the_known_one_is_refused(with_cuda: Workshop) -> None:
    synthetic.edit_file(
        with_cuda.patches / "catalogue/cuda.toml", lambda text: text.replace('whl" = "', 'whl" = "0', 1)
    )
    with pytest.raises(WrongHash, match="nvidia_runtime"):
        _unpack(with_cuda)


def test_a_package_under_another_name_is_refused(with_cuda: Workshop) -> None:
    """pip prefers another file of the same version, which the catalogue does not know."""
    other = with_cuda.folder / "shop" / f"nvidia_runtime-12.4.127-1-py3-none-{PLATFORM}.whl"
    other.write_bytes(next((with_cuda.folder / "shop").glob("nvidia_runtime*.whl")).read_bytes())
    with pytest.raises(DownloadFailed, match=r"pip took nvidia_runtime-12\.4\.127-1-.* instead of"):
        _unpack(with_cuda)


@pytest.mark.parametrize(
    ("files", "failure"),
    [
        ({"nvidia/cuda_runtime/include/a.h": b""}, DamagedWheel),  # no library
        ({"nvidia/../../include/evil.h": b""}, UnsafeMember),
    ],
)
def test_a_package_with_something_else_in_it_is_refused(
    with_cuda: Workshop, files: dict[str, bytes], failure: type[Exception]
) -> None:
    path = _package(with_cuda.folder / "shop", "nvidia_runtime", "12.4.127", files)
    (with_cuda.patches / "catalogue/cuda.toml").write_text(f'["12.4"]\n"{path.name}" = "{file_sha256(path)}"\n')
    with pytest.raises(failure):
        _unpack(with_cuda)


def test_a_package_that_the_registry_lacks_is_said(with_cuda: Workshop) -> None:
    next((with_cuda.folder / "shop").glob("nvidia_crt*.whl")).unlink()
    done = with_cuda.build()
    assert done.returncode == DownloadFailed.exit_code
    assert "nvidia-crt 12.4.131" in done.stderr and "--base" not in done.stderr
    assert "Traceback" not in done.stderr
    _nothing_is_left(with_cuda, 1)


def test_a_package_that_is_cut_short_is_refused(with_cuda: Workshop) -> None:
    package = next((with_cuda.folder / "shop").glob("nvidia_runtime*.whl"))
    package.write_bytes(package.read_bytes()[:-100])
    done = with_cuda.build()
    assert done.returncode in (DownloadFailed.exit_code, WrongHash.exit_code)
    assert package.name in done.stderr and "Traceback" not in done.stderr
    _nothing_is_left(with_cuda, 0)


def test_a_damaged_package_in_the_cache_is_fetched_again(with_cuda: Workshop) -> None:
    _unpack(with_cuda)
    (kept,) = with_cuda.cache.rglob("nvidia_runtime*.whl")
    expected = kept.read_bytes()
    kept.write_bytes(expected[:-1] + b"x")
    assert with_cuda.build().returncode == 0
    assert kept.read_bytes() == expected


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.release), signal.SIGTERM, signal.SIGKILL]
)
def test_an_interruption_at_the_packages_leaves_nothing_half_written(with_cuda: Workshop, number: int) -> None:
    done = with_cuda.build(signal=number, moment="CUDA headers")
    assert done.returncode == (-number if number == signal.SIGKILL else 128 + number), done.stderr
    assert not list(with_cuda.output.glob("*.whl"))
    assert with_cuda.build().returncode == 0
    assert [path.suffix for path in with_cuda.output.iterdir()] == [".whl"]


def test_a_disk_that_is_full_while_packages_are_unpacked_is_said(with_cuda: Workshop) -> None:
    """A file size limit stands in for the full disk."""
    _unpack(with_cuda)  # fills the cache
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(with_cuda.patches), str(with_cuda.base), str(with_cuda.output)],
        capture_output=True,
        text=True,
        env={**os.environ, "LMSBUILD_CACHE": str(with_cuda.cache)},
        check=False,
    )
    assert done.returncode == NoSpace.exit_code, done.stderr
    assert "no space left" in done.stderr and "Traceback" not in done.stderr
    _nothing_is_left(with_cuda, 2)


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from lmsbuild import cli, paths
from lmsbuild.fetch import cuda
patches, base, output = sys.argv[1:]
paths.patches_folder = lambda: Path(patches)
place = cuda._place
def limited(*words):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
    return place(*words)
cuda._place = limited
sys.argv = ["lmsbuild", "pytorch", "v2.13.0", "--base-wheel", base, "--output", output]
cli.main()
"""


def _nothing_is_left(workshop: Workshop, packages: int) -> None:
    """No wheel, nothing temporary, and in the cache as many packages, which are whole."""
    assert not list(workshop.output.iterdir())
    entries = [path for path in workshop.cache.iterdir() if path.suffix != ".lock"]
    assert len(entries) == packages
    for entry in entries:
        (wheel,) = entry.glob("*.whl")
        assert wheel.with_name(f"{wheel.name}.sha256").read_text().strip() == file_sha256(wheel)


def test_a_library_that_takes_cuda_from_a_wheel_without_it_is_refused(with_cuda: Workshop) -> None:
    series = with_cuda.patches / "catalogue/pytorch/series.toml"
    synthetic.edit_file(series, lambda text: text.replace('requires = "torch/lib/libc10_cuda.so"\n', ""))
    with_cuda.generate()
    synthetic.write_wheel(with_cuda.base, synthetic.members(synthetic.libraries(with_cuda.folder)))
    with pytest.raises((BadSources, UnknownCuda), match="CUDA"):
        graft.build(with_cuda.options())
